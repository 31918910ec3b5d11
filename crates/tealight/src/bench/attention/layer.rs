//! One measurement of one layer, in its own process: `tealight bench attention-once`.

use std::time::Instant;

use anyhow::{Result, bail};
use candle_core::{DType, Device, Tensor, Var};
use tealight_model::attention::decoding::{bytes_of, initial_state};
use tealight_model::attention::{
    Attention, AttentionConfig, AttentionInput, AttentionSpec, LayerPlace, Reads,
};
use tealight_model::position::AttentionNeeds;
use tealight_model::{Bias, Initializer, Mask, Mode, ParamStore};
use tealight_ops::backward;
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::config::memory::BytesPerScalar;

use super::kind::Kind;
use super::measurement::Measurement;
use crate::args::bench::{AttentionOnce, Layer, Pass};
use crate::bench::times::{Times, seconds_of};
use crate::system::memory;
use crate::terminal::output::print_json;

/// The minimum number of repeats for a median.
const MIN_REPEATS: usize = 3;
/// Slow layers stop before the minimum number of repeats when they exceed `--seconds` by this factor.
const MAX_OVERTIME: f64 = 10.;
/// Positions that are decoded after a sequence at most, that of the warm-up included.
const MAX_DECODED: usize = 256;

/// Measures time or memory and prints the result as one line of JSON.
pub(in crate::bench) fn run(args: &AttentionOnce) -> Result<()> {
    let config = Kind::parse(&args.kind)?.config()?;
    let device = args.layer.device.open()?;
    check_memory(&config, args, &device)?;
    // Starts the threads and allocates their buffers before the memory is measured.
    let square = Tensor::ones((256, 256), DType::F32, &device)?;
    square.matmul(&square)?;
    let before = memory::resident();
    let dtype = args.layer.precision.computes_in(&device);
    let store = ParamStore::new(0, DType::F32, &device).computing_in(dtype);
    let bench = Bench::build(&config, args, &store)?;
    if args.memory {
        // Excludes temporary memory of the initialisation.
        memory::reset_peak();
        bench.compute()?;
        let growth = memory::peak().zip(before).map(|(peak, before)| peak.saturating_sub(before));
        return print_json(&growth);
    }
    print_json(&bench.timing()?)
}

/// A layer and its input.
struct Bench<'a> {
    args: &'a AttentionOnce,
    layer: Box<dyn Attention>,
    x: Var,
    store: &'a ParamStore,
}

impl<'a> Bench<'a> {
    fn build(
        config: &AttentionConfig,
        args: &'a AttentionOnce,
        store: &'a ParamStore,
    ) -> Result<Self> {
        let spec = spec(args);
        let trainable = config.build(&spec, &store.trainable())?;
        // Without gradients no graph is recorded, which determines the memory.
        let layer = if args.pass == Pass::ForwardAndBackward {
            trainable
        } else {
            config.build(&spec, &store.without_gradients())?
        };
        let shape = (1, args.length, args.layer.d_model);
        let stream = Stream::new(0, Purpose::Data);
        let normal = (0..(shape.1 * shape.2) as u64).map(|index| stream.normal(index) as f32);
        let x = Tensor::from_vec(normal.collect::<Vec<_>>(), shape, store.device())?;
        let x = x.to_dtype(args.layer.precision.computes_in(store.device()))?;
        Ok(Self { args, layer, x: Var::from_tensor(&x)?, store })
    }

    fn timing(&self) -> Result<Measurement> {
        if self.args.pass == Pass::Decoding {
            return self.decoding();
        }
        self.measure(|| self.compute())
    }

    /// The time of further positions after the sequence, each after the one before.
    fn decoding(&self) -> Result<Measurement> {
        let mut state = initial_state(self.layer.as_ref(), None)?;
        let x = self.x.as_detached_tensor();
        state.step(&x, None)?;
        let state_bytes = Some(bytes_of(state.as_mut()) as u64);
        let next = x.narrow(1, 0, 1)?.contiguous()?;
        let measured = self.measure(|| {
            state.step(&next, None)?;
            Ok(())
        })?;
        Ok(Measurement { state_bytes, ..measured })
    }

    /// The time of each repeat, after a warm-up.
    fn measure(&self, mut compute: impl FnMut() -> Result<()>) -> Result<Measurement> {
        compute()?;
        let layer = &self.args.layer;
        let (started, mut seconds) = (Instant::now(), Vec::new());
        loop {
            seconds.push(seconds_of(self.store.device(), &mut compute)?);
            let total = started.elapsed().as_secs_f64();
            let is_enough = match layer.repeats {
                _ if self.args.pass == Pass::Decoding && seconds.len() == MAX_DECODED - 1 => true,
                Some(repeats) => seconds.len() >= repeats,
                None if seconds.len() < MIN_REPEATS => total > MAX_OVERTIME * layer.seconds,
                None => total > layer.seconds,
            };
            if is_enough {
                break;
            }
        }
        let n_repeats = seconds.len();
        let Times { median, fastest, slowest } = Times::from_durations(seconds);
        Ok(Measurement {
            seconds: median,
            range: [fastest, slowest],
            n_repeats,
            peak_memory_bytes: None,
            state_bytes: None,
            n_parameters: self.store.n_parameters() as u64,
        })
    }

    /// Forward, or forward and backward with the gradients of all parameters and of the input.
    fn compute(&self) -> Result<()> {
        let mask = Mask::none();
        let input = |x, mode| AttentionInput::new(x, &mask, mode);
        if self.args.pass == Pass::Forward {
            self.layer.forward(&input(&self.x.as_detached_tensor(), Mode::Eval))?;
            return Ok(());
        }
        let mode = Mode::train(Stream::new(0, Purpose::Dropout));
        let output = self.layer.forward(&input(self.x.as_tensor(), mode))?;
        let variables: Vec<_> = self.store.iter().collect();
        let parameters = variables.iter().map(|(name, variable)| (name.as_str(), &**variable));
        backward(&output.sum_all()?, parameters.chain([("x", self.x.as_tensor())]))?;
        Ok(())
    }
}

fn spec(args: &AttentionOnce) -> AttentionSpec<'static> {
    let Layer { d_model, n_heads, causal, .. } = args.layer;
    let n_decoded = if args.pass == Pass::Decoding { MAX_DECODED } else { 0 };
    let max_len = args.length.saturating_add(n_decoded);
    AttentionSpec {
        d_model,
        n_heads,
        head_dim: None,
        max_q_len: max_len,
        max_kv_len: max_len,
        reads: if causal { Reads::Past } else { Reads::Everything },
        dropout: 0.,
        bias: Bias::With,
        position: AttentionNeeds::Nothing,
        packed: false,
        conv_size: 0,
        layer: LayerPlace::ONLY,
        init: &Initializer::FAN_IN,
        key: "model.attention",
    }
}

/// Fails if the estimated memory exceeds what is available: swapping or the out-of-memory killer would
/// affect other processes, too.
fn check_memory(config: &AttentionConfig, args: &AttentionOnce, device: &Device) -> Result<()> {
    let cost = config.cost(&spec(args), args.length, args.length);
    // The gradients of activations take at most as much memory as the activations.
    let n_copies = if args.pass == Pass::ForwardAndBackward { 2. } else { 1. };
    let bytes = BytesPerScalar::F32.total(cost.parameters, n_copies * cost.activations);
    let gibibytes = |bytes: f64| bytes / f64::from(1 << 30);
    // Where the system does not report it, a limit that no machine exceeds.
    let available = memory::available().unwrap_or(1 << 50) as f64;
    if device.is_cpu() && bytes > available {
        bail!(
            "needs about {:.1} GiB of memory, and {:.1} GiB is available",
            gibibytes(bytes),
            gibibytes(available)
        );
    }
    Ok(())
}
