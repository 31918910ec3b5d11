//! One measurement: a layer is built, and asked again and again.

use std::time::Instant;

use anyhow::{Result, bail};
use candle_core::{DType, Device, Tensor, Var};
use serde::{Deserialize, Serialize};
use tealight_model::attention::{Attention, AttentionConfig, AttentionInput, AttentionSpec, Reads};
use tealight_model::position::AttentionNeeds;
use tealight_model::{Bias, Initializer, Mask, Mode, ParamStore};
use tealight_ops::backward;
use tealight_ops::rng::{Purpose, Stream};

use super::kind::Kind;
use crate::args::bench::{AttentionOnce, Layer};
use crate::system::memory;
use crate::terminal::output::print;

/// Fewer repeats have no median worth the name.
const MIN_REPEATS: usize = 3;
/// A layer that is slower than this, in units of the time to repeat for, is asked less often.
const PATIENCE: f64 = 10.;

/// How long a layer takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Timing {
    /// The median.
    pub(super) seconds: f64,
    /// The shortest time and the longest.
    pub(super) range: [f64; 2],
    pub(super) n_repeats: usize,
    pub(super) n_parameters: u64,
}

/// How far a process grows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Growth {
    /// `null` where the system does not say.
    pub(super) peak_memory_bytes: Option<u64>,
}

/// Measures, and prints the result as one line of JSON.
pub(super) fn run(args: &AttentionOnce) -> Result<()> {
    let config = Kind::parse(&args.kind)?.config()?;
    let device = args.layer.device.open()?;
    enough_memory(&config, args, &device)?;
    // Threads and their buffers come to life before the memory is looked at.
    let square = Tensor::ones((256, 256), DType::F32, &device)?;
    square.matmul(&square)?;
    let before = memory::resident();
    let store = ParamStore::new(0, DType::F32, &device);
    let bench = Bench::build(&config, args, &store)?;
    let json = if args.memory {
        // What drawing the parameters took on the way is no part of what is compared.
        memory::reset_peak();
        bench.compute()?;
        let growth = memory::peak().zip(before).map(|(peak, before)| peak.saturating_sub(before));
        serde_json::to_string(&Growth { peak_memory_bytes: growth })?
    } else {
        serde_json::to_string(&bench.timing(&args.layer, &device)?)?
    };
    print(&format!("{json}\n"))
}

/// A layer and its input.
struct Bench<'a> {
    layer: Box<dyn Attention>,
    x: Var,
    store: &'a ParamStore,
    backward: bool,
}

impl<'a> Bench<'a> {
    fn build(
        config: &AttentionConfig,
        args: &AttentionOnce,
        store: &'a ParamStore,
    ) -> Result<Self> {
        let spec = spec(args);
        let trainable = config.build(&spec, &store.trainable())?;
        // Without gradients nothing is recorded: it is what decides over the memory.
        let layer = if args.backward { trainable } else { config.build(&spec, &store.frozen())? };
        let shape = (1, args.length, args.layer.d_model);
        let stream = Stream::new(0, Purpose::Data);
        let normal = (0..(shape.1 * shape.2) as u64).map(|index| stream.normal(index) as f32);
        let x = Tensor::from_vec(normal.collect::<Vec<_>>(), shape, store.device())?;
        Ok(Self { layer, x: Var::from_tensor(&x)?, store, backward: args.backward })
    }

    fn timing(&self, layer: &Layer, device: &Device) -> Result<Timing> {
        let mut seconds = self.times(layer, device)?;
        seconds.sort_by(f64::total_cmp);
        Ok(Timing {
            seconds: median(&seconds),
            range: [seconds[0], seconds[seconds.len() - 1]],
            n_repeats: seconds.len(),
            n_parameters: self.store.n_parameters() as u64,
        })
    }

    /// Seconds of each repeat, after one that does not count.
    fn times(&self, layer: &Layer, device: &Device) -> Result<Vec<f64>> {
        self.compute()?;
        device.synchronize()?;
        let (started, mut seconds) = (Instant::now(), Vec::new());
        loop {
            let since = Instant::now();
            self.compute()?;
            device.synchronize()?;
            seconds.push(since.elapsed().as_secs_f64());
            let total = started.elapsed().as_secs_f64();
            let is_enough = match layer.repeats {
                Some(repeats) => seconds.len() >= repeats,
                None if seconds.len() < MIN_REPEATS => total > PATIENCE * layer.seconds,
                None => total > layer.seconds,
            };
            if is_enough {
                return Ok(seconds);
            }
        }
    }

    /// Forward; with gradients, those of every parameter and of the input.
    fn compute(&self) -> Result<()> {
        let mask = Mask::none();
        let input = |x, mode| AttentionInput { x, memory: None, mask: &mask, mode };
        if !self.backward {
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
    AttentionSpec {
        d_model,
        n_heads,
        head_dim: None,
        max_q_len: args.length,
        max_kv_len: args.length,
        reads: if causal { Reads::Past } else { Reads::Everything },
        dropout: 0.,
        bias: Bias::With,
        position: AttentionNeeds::Nothing,
        packed: false,
        init: &Initializer::FAN_IN,
        key: "model.attention",
    }
}

/// Refuses what would fill the memory of the machine, on which others may depend.
fn enough_memory(config: &AttentionConfig, args: &AttentionOnce, device: &Device) -> Result<()> {
    let cost = config.cost(&spec(args), args.length, args.length);
    // The gradients of the activations come and go, and are at most as many.
    let n_copies = if args.backward { 2. } else { 1. };
    let bytes = 4. * (n_copies * cost.activations + 4. * cost.parameters);
    let gibibytes = |bytes: f64| bytes / f64::from(1 << 30);
    // Where the system does not say, at least what no machine has is refused.
    let available = memory::available().unwrap_or(1 << 50) as f64;
    if device.is_cpu() && bytes > available {
        bail!(
            "needs about {:.1} GiB of memory, and {:.1} GiB are left",
            gibibytes(bytes),
            gibibytes(available)
        );
    }
    Ok(())
}

/// Of numbers in ascending order, at least one.
fn median(sorted: &[f64]) -> f64 {
    let (low, high) = (sorted[(sorted.len() - 1) / 2], sorted[sorted.len() / 2]);
    f64::midpoint(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_lies_in_the_middle() {
        assert_eq!(median(&[3.]), 3.);
        assert_eq!(median(&[1., 2., 9.]), 2.);
        assert_eq!(median(&[1., 2., 4., 9.]), 3.);
    }
}
