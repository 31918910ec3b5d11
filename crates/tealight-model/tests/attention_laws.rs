//! Laws of every kind of attention, by enumeration: a new kind is included without changes here.
//!
//! kinds × [`Reads`] × masks × lengths × position encodings that act in attention. A combination that
//! `build` refuses is skipped, provided that the error names the keys.

mod common;
#[path = "common/differences.rs"]
mod differences;

use std::collections::BTreeSet;

use candle_core::{DType, Result, Tensor};
use common::{normal, values};
use differences::checked_gradients;
use serde::{Deserialize, Serialize};
use tealight_model::attention::state::State;
use tealight_model::attention::{AttentionConfig, AttentionCost, RowSum, decoding};
use tealight_model::init::InitConfig;
use tealight_model::position::{AttentionNeeds, PositionConfig, PositionSpec, ScoreBias};
use tealight_model::{
    Attention, AttentionInput, AttentionSpec, Bias, BuildError, Initializer, LayerPlace, Mask,
    Memory, Mode, ParamStore, Reads,
};
use tealight_ops::backward;
use tealight_ops::gradients::FaultKind;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const BATCH: usize = 2;
const Q_LEN: usize = 5;
const MAX_SEQ_LEN: usize = 7;
const N_HEADS: usize = 3;
/// d_model and head_dim: 3 × 11; 3 × 10 for layers that need an even head_dim, and 3 × 12 for an even half of it.
const WIDTHS: [[usize; 2]; 3] = [[33, 11], [30, 10], [36, 12]];
/// Settings beside the defaults under which a layer is another one.
const VARIANTS: &[&str] = &[
    "kind = \"softmax\"\nsink = \"learnt\"\noutput_gate = \"elementwise\"",
    "kind = \"local\"\nwindow = 3\nsink = \"one\"\noutput_gate = \"headwise\"",
    "kind = \"forgetting\"\npro = true",
    "kind = \"linear\"\nfeature_map = \"taylor\"\nfeature_dim = 3",
    "kind = \"gmlp\"\nwidth = 13",
    "kind = \"bigbird\"\nblock = 1\nn_random = 1",
    "kind = \"bigbird\"\nblock = 1\nn_random = 0",
    "kind = \"longformer\"\nwindow = 2\nn_global = 2",
    "kind = \"mla\"\nd_latent = 13\nd_query_latent = 17\nd_nope = 5\nd_value = 7",
    "kind = \"gated_deltanet\"\nn_householder = 2\nn_key_heads = 1\nnegative_eigenvalues = true",
    "kind = \"deltanet\"\nconv_size = 0",
    "kind = \"mamba2\"\nn_groups = 3",
    "kind = \"kda\"\nlower_bound = -5.0",
    "kind = \"softmax\"\nconv_size = 4",
    "kind = \"local\"\nwindow = 3\nconv_size = 2",
    "kind = \"aft_simple\"\nconv_size = 4",
    "kind = \"aft_full\"\nconv_size = 3",
    "kind = \"linear\"\nconv_size = 4",
    "kind = \"retention\"\nconv_size = 4",
    "kind = \"rwkv\"\nconv_size = 4",
    "kind = \"hgrn2\"\nconv_size = 1",
    "kind = \"rwkv7\"\nconv_size = 4",
    "kind = \"forgetting\"\npro = true\nconv_size = 3",
    "kind = \"differential\"\nconv_size = 2",
    "kind = \"mla\"\nconv_size = 3",
    "kind = \"path\"\nconv_size = 2",
    "kind = \"log_linear\"\nconv_size = 2",
    "kind = \"linear\"\nfeature_map = \"taylor\"\nfeature_dim = 3\nconv_size = 2",
    "kind = \"gla\"\nconv_size = 2",
    "kind = \"lightning\"\nconv_size = 2",
    "kind = \"sparsemax\"\nconv_size = 2",
    "kind = \"rwkv7\"\ndecay_rank = 3\nrate_rank = 2\ngate_rank = 5",
];
/// In the middle of a stack, because constants and bounds of some kinds depend on the depth.
const PLACE: LayerPlace = LayerPlace { index: 1, count: 3, is_first: true };
/// Heads whose total width is not d_model, for layers that support it.
const FREE_WIDTHS: [[usize; 2]; 1] = [[31, 14]];
const DROPOUT: f64 = 0.3;

/// With fewer keys, a mask may leave a row with a single key; its scores then have no gradient.
const LEN_WITH_CHOICE: usize = 4;
/// Rounding error of sums of a few weights in f32.
const ERROR: f64 = 1e-5;

/// The masks of a call. In the padded ones, all keys of the second row are padding.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Masking {
    None,
    Padding,
    Additive,
    Both,
    Segments,
}

impl Masking {
    const ALL: [Self; 5] = [Self::None, Self::Padding, Self::Additive, Self::Both, Self::Segments];

    fn is_padding(self, row: usize, key: usize, kv_len: usize) -> bool {
        let padded = row == 1 || (kv_len >= LEN_WITH_CHOICE && key == kv_len - 1);
        padded && self.is_padded()
    }

    fn is_padded(self) -> bool {
        matches!(self, Self::Padding | Self::Both)
    }

    /// The additive mask drops the first key for the first query, which may leave it without keys.
    fn is_dropped(self, query: usize, key: usize) -> bool {
        query == 0 && key == 0 && matches!(self, Self::Additive | Self::Both)
    }

    /// Two documents in the first example, three in the second.
    fn segment(self, row: usize, at: usize) -> u32 {
        let boundaries = [&[2][..], &[3, 6]][row];
        let is_packed = self == Self::Segments;
        boundaries.iter().filter(|&&boundary| is_packed && at >= boundary).count() as u32
    }

    fn build(self, q_len: usize, kv_len: usize, dtype: DType) -> Result<Mask> {
        let mut mask = Mask::none();
        if matches!(self, Self::Additive | Self::Both) {
            let mut additive = values(&normal(71, &[q_len, kv_len], DType::F64)?)?;
            additive[0] = f64::NEG_INFINITY;
            let additive = Tensor::from_vec(additive, (q_len, kv_len), device())?;
            mask = mask.with_attn_mask(&additive.to_dtype(dtype)?)?;
        }
        if matches!(self, Self::Padding | Self::Both) {
            let flags = (0..BATCH).flat_map(|row| (0..kv_len).map(move |key| (row, key)));
            let flags = flags.map(|(row, key)| u8::from(self.is_padding(row, key, kv_len)));
            let flags = Tensor::from_vec(flags.collect(), (BATCH, kv_len), device())?;
            mask = mask.with_key_padding_mask(&flags)?;
        }
        if self == Self::Segments {
            let segments = (0..BATCH).flat_map(|row| (0..kv_len).map(move |at| (row, at)));
            let segments = segments.map(|(row, at)| self.segment(row, at)).collect();
            mask = mask.with_segments(&Tensor::from_vec(segments, (BATCH, kv_len), device())?)?;
        }
        Ok(mask)
    }
}

/// A layer with the position encoding that it was built for.
struct Layer {
    label: String,
    kind: &'static str,
    position: &'static str,
    reads: Reads,
    d_model: usize,
    head_dim: usize,
    store: ParamStore,
    attention: Box<dyn Attention>,
    score_bias: Option<Box<dyn ScoreBias>>,
    takes_attn_mask: bool,
    takes_segments: bool,
    ignores_padding: bool,
    /// The costs on sequences of the maximal length, and of twice that length.
    costs: [AttentionCost; 2],
}

/// The inputs of a call; there is a memory only for cross-attention.
#[derive(Clone)]
struct Call {
    x: Tensor,
    memory: Option<Tensor>,
    masking: Masking,
}

impl Layer {
    fn build(
        config: &AttentionConfig,
        reads: Reads,
        position: &PositionConfig,
        [d_model, head_dim]: [usize; 2],
        dtype: DType,
    ) -> std::result::Result<Self, BuildError> {
        let label = format!("{config:?}, {reads:?}, {}, {d_model}, {head_dim}", position.kind());
        let store = ParamStore::new(17, dtype, device());
        let (causal, position_kind) = (reads == Reads::Past, position.kind());
        let spec = PositionSpec {
            d_model,
            n_heads: N_HEADS,
            head_dim,
            max_seq_len: MAX_SEQ_LEN,
            causal,
            has_padding: false,
            grid: None,
        };
        let position = position.build(&spec, &store.trainable().pp("position"))?;
        let init = Initializer::build(&InitConfig::default(), 1)?;
        let spec = AttentionSpec {
            d_model,
            n_heads: N_HEADS,
            head_dim: Some(head_dim),
            max_q_len: MAX_SEQ_LEN,
            max_kv_len: MAX_SEQ_LEN,
            reads,
            dropout: DROPOUT,
            bias: Bias::With,
            position: position.needs(),
            packed: false,
            conv_size: 0,
            layer: PLACE,
            init: &init,
            key: "model.attention",
        };
        let attention = config.build(&spec, &store.trainable().pp("attention"))?;
        // A layer that accepts the bias of a position encoding accepts any additive mask.
        let biased = AttentionSpec { position: AttentionNeeds::ScoreBias, ..spec.clone() };
        let other = ParamStore::new(17, dtype, device());
        // A convolution reads a key that an additive mask drops.
        let takes_attn_mask =
            config.conv_size() == 0 && config.build(&biased, &other.trainable()).is_ok();
        let packed = AttentionSpec { packed: true, ..spec.clone() };
        let takes_segments = match config.build(&packed, &other.trainable().pp("packed")) {
            Ok(_) => reads != Reads::Memory,
            Err(BuildError::Config(fault)) => {
                assert_eq!(fault.keys, ["model.attention.kind", "task.sequences"], "{fault}");
                false
            }
            Err(error) => return Err(error),
        };
        let cost = config.cost(&spec, MAX_SEQ_LEN, MAX_SEQ_LEN);
        let longer = config.cost(&spec, 2 * MAX_SEQ_LEN, 2 * MAX_SEQ_LEN);
        let score_bias = position.score_bias;
        let costs = [cost, longer];
        Ok(Self {
            label,
            kind: config.kind(),
            position: position_kind,
            reads,
            d_model,
            head_dim,
            store,
            attention,
            score_bias,
            takes_attn_mask,
            takes_segments,
            ignores_padding: config.ignores_padding(),
            costs,
        })
    }

    /// `(q_len, kv_len)` for each length that the layer must support.
    fn lengths(&self) -> Vec<(usize, usize)> {
        let lengths = 1..=MAX_SEQ_LEN;
        match self.reads {
            Reads::Memory => lengths
                .clone()
                .map(|q_len| (q_len, MAX_SEQ_LEN))
                .chain(lengths.map(|kv_len| (Q_LEN, kv_len)))
                .collect(),
            Reads::Everything | Reads::Past => lengths.map(|len| (len, len)).collect(),
        }
    }

    /// The awkward length: neither the longest nor a power of two.
    fn usual(&self) -> (usize, usize) {
        (Q_LEN, if self.reads == Reads::Memory { MAX_SEQ_LEN } else { Q_LEN })
    }

    /// The masks that the layer accepts.
    fn maskings(&self) -> impl Iterator<Item = Masking> {
        Masking::ALL.into_iter().filter(|masking| match masking {
            Masking::None | Masking::Padding => true,
            Masking::Additive | Masking::Both => self.takes_attn_mask,
            Masking::Segments => self.takes_segments,
        })
    }

    fn call(&self, (q_len, kv_len): (usize, usize), masking: Masking) -> Result<Call> {
        let states = |index, len| normal(index, &[BATCH, len, self.d_model], self.dtype());
        let reads_memory = self.reads == Reads::Memory;
        let memory = reads_memory.then(|| states(1, kv_len)).transpose()?;
        Ok(Call { x: states(0, q_len)?, memory, masking })
    }

    fn dtype(&self) -> DType {
        self.store.trainable().dtype()
    }

    fn with_input<T>(
        &self,
        call: &Call,
        mode: Mode,
        body: impl FnOnce(&AttentionInput<'_>) -> Result<T>,
    ) -> Result<T> {
        let Call { x, memory, masking } = call;
        let (_batch, q_len, _d_model) = x.dims3()?;
        let (_batch, kv_len, _d_model) = memory.as_ref().unwrap_or(x).dims3()?;
        let mut mask = masking.build(q_len, kv_len, self.dtype())?;
        if let Some(score_bias) = &self.score_bias {
            mask = mask.with_attn_mask(&score_bias.bias(q_len, kv_len)?)?;
        }
        body(&AttentionInput { memory: memory.as_ref(), ..AttentionInput::new(x, &mask, mode) })
    }

    fn forward(&self, call: &Call, mode: Mode) -> Result<Tensor> {
        self.with_input(call, mode, |input| self.attention.forward(input))
    }

    /// Σ y ⊙ noise: a loss that weights every element of the output differently.
    fn loss(&self, call: &Call, mode: Mode) -> Result<Tensor> {
        let y = self.forward(call, mode)?;
        (&y * normal(99, y.dims(), y.dtype())?)?.sum_all()
    }

    /// Whether query `i` of example `row` may read key `j`.
    fn may_read(&self, masking: Masking, [row, i, j]: [usize; 3], kv_len: usize) -> bool {
        let future = self.reads == Reads::Past && j > i;
        let other = masking.segment(row, i) != masking.segment(row, j);
        !future && !other && !masking.is_dropped(i, j) && !masking.is_padding(row, j, kv_len)
    }

    /// The largest |Q Kᵀ|/√head_dim, where the layer has such maps; else 1.
    fn largest_score(&self, call: &Call) -> Result<f64> {
        let parameters = self.store.tensors();
        let weight = |name: &str| parameters.get(&format!("attention.{name}.weight"));
        let (Some(query), Some(key)) = (weight("query"), weight("key")) else { return Ok(1.) };
        let width = N_HEADS * self.head_dim;
        if query.dims() != key.dims() || query.dim(0)? != width {
            return Ok(1.); // The keys are not compared with queries, or have another width.
        }
        let heads = |x: &Tensor, weight: &Tensor| {
            let (batch, len, _d_model) = x.dims3()?;
            let x = x.broadcast_matmul(&weight.t()?)?;
            x.reshape((batch, len, N_HEADS, ()))?.transpose(1, 2)?.contiguous()
        };
        let query = heads(&call.x, query)?;
        let key = heads(call.memory.as_ref().unwrap_or(&call.x), key)?;
        let scores = values(&query.matmul(&key.t()?)?)?;
        let largest = scores.iter().fold(0_f64, |largest, score| largest.max(score.abs()));
        Ok(largest / (self.head_dim as f64).sqrt())
    }
}

/// Every layer that can be built, in `dtype`.
fn layers(dtype: DType) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    let kinds = AttentionConfig::KINDS.iter().map(|kind| format!("kind = \"{}\"", kind.name));
    for settings in kinds.chain(VARIANTS.iter().map(ToString::to_string)) {
        let config: AttentionConfig = toml::from_str(&settings).expect("settings of a kind");
        let n_before = layers.len();
        for reads in [Reads::Everything, Reads::Past, Reads::Memory] {
            for position in positions(reads)? {
                layers.extend(buildable(&config, reads, &position, &WIDTHS, dtype)?);
            }
            let none = PositionConfig::None;
            layers.extend(buildable(&config, reads, &none, &FREE_WIDTHS, dtype)?);
        }
        assert!(layers.len() > n_before, "no layer of {settings} can be built");
    }
    Ok(layers)
}

/// The layer at the first of the `widths` at which it can be built; a refusal must name keys.
fn buildable(
    config: &AttentionConfig,
    reads: Reads,
    position: &PositionConfig,
    widths: &[[usize; 2]],
    dtype: DType,
) -> Result<Option<Layer>> {
    for &widths in widths {
        match Layer::build(config, reads, position, widths, dtype) {
            Ok(layer) => return Ok(Some(layer)),
            Err(BuildError::Candle(error)) => return Err(error),
            Err(BuildError::Config(fault)) => {
                let named = fault.keys.iter().all(|key| key.starts_with("model."));
                assert!(named && !fault.keys.is_empty(), "which key is in the way? {fault}");
            }
        }
    }
    Ok(None)
}

/// No position encoding, and those that act in attention, which cross-attention does not have.
fn positions(reads: Reads) -> Result<Vec<PositionConfig>> {
    let mut positions = vec![PositionConfig::None];
    if reads == Reads::Memory {
        return Ok(positions);
    }
    let causal = reads == Reads::Past;
    for config in PositionConfig::of_sequences() {
        let store = ParamStore::new(17, DType::F32, device());
        let spec = PositionSpec {
            d_model: 30,
            n_heads: 3,
            head_dim: 10,
            max_seq_len: MAX_SEQ_LEN,
            causal,
            has_padding: false,
            grid: None,
        };
        let position = config.build(&spec, &store.trainable()).map_err(candle_core::Error::wrap)?;
        if !matches!(position.needs(), AttentionNeeds::Nothing) {
            positions.push(config);
        }
    }
    Ok(positions)
}

fn stream(index: u64) -> Stream {
    Stream::new(17, Purpose::Dropout).fork(index)
}

fn is_finite(x: &Tensor) -> Result<bool> {
    Ok(values(x)?.iter().all(|x| x.is_finite()))
}

/// `x` with the chosen `(row, position)`s replaced by large numbers.
fn disturbed(x: &Tensor, chosen: impl Fn(usize, usize) -> bool) -> Result<Tensor> {
    let (batch, len, d_model) = x.dims3()?;
    let flags = (0..batch).flat_map(|row| (0..len).map(move |at| (row, at)));
    let flags: Vec<u8> = flags.map(|(row, at)| u8::from(chosen(row, at))).collect();
    let flags = Tensor::from_vec(flags, (batch, len, 1), device())?.broadcast_as(x.shape())?;
    let other = (normal(23, &[batch, len, d_model], x.dtype())? * 100.)?;
    flags.where_cond(&other, x)
}

/// Panics unless `a` and `b` are the same to the last bit at the chosen `(row, position)`s.
fn assert_same(
    label: &str,
    a: &Tensor,
    b: &Tensor,
    chosen: impl Fn(usize, usize) -> bool,
) -> Result<()> {
    let (a, b) = (a.to_dtype(DType::F64)?, b.to_dtype(DType::F64)?);
    for (row, (a, b)) in a.to_vec3::<f64>()?.iter().zip(&b.to_vec3::<f64>()?).enumerate() {
        for (at, (a, b)) in a.iter().zip(b).enumerate() {
            assert!(!chosen(row, at) || a == b, "{label}: position {at} of example {row} differs");
        }
    }
    Ok(())
}

#[test]
fn the_shape_is_kept_and_the_output_is_finite_at_every_length() -> Result<()> {
    for layer in layers(DType::F32)? {
        for lengths in layer.lengths() {
            for masking in layer.maskings() {
                let call = layer.call(lengths, masking)?;
                for mode in [Mode::Eval, Mode::train(stream(0))] {
                    let y = layer.forward(&call, mode)?;
                    let label = format!("{}, {masking:?}, {lengths:?}", layer.label);
                    assert_eq!(y.dims(), call.x.dims(), "{label}");
                    assert!(is_finite(&y)?, "{label}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn scores_of_any_size_give_finite_outputs_and_gradients() -> Result<()> {
    for layer in layers(DType::F32)? {
        for masking in layer.maskings() {
            for size in [80., 200., 10_000.] {
                let call = layer.call(layer.usual(), masking)?;
                // A score is a product of two inputs.
                let factor = (size / layer.largest_score(&call)?).sqrt();
                let larger = |x: Tensor| x * factor;
                let memory = call.memory.map(larger).transpose()?;
                let call = Call { x: larger(call.x)?, memory, masking };
                let label = format!("{}, {masking:?}, scores of ±{size}", layer.label);
                assert!(is_finite(&layer.forward(&call, Mode::Eval)?)?, "{label}");
                let variables: Vec<_> = layer.store.iter().collect();
                let named = variables.iter().map(|(name, var)| (name.as_str(), var.as_tensor()));
                let gradients = backward(&layer.loss(&call, Mode::Eval)?, named)?;
                for (name, gradient) in gradients.iter() {
                    let gradient = gradient.expect("the gradient of a parameter");
                    assert!(is_finite(gradient)?, "{label}: `{name}`");
                }
            }
        }
    }
    Ok(())
}

/// Panics unless the gradient of every parameter is correct under every mask.
fn check_gradients(layer: &Layer, lengths: (usize, usize), mode: Mode) -> Result<()> {
    for masking in layer.maskings() {
        let call = layer.call(lengths, masking)?;
        let label = format!("{}, {masking:?}, {lengths:?}", layer.label);
        let gradients = checked_gradients(&label, &layer.store, 1, || layer.loss(&call, mode))?;
        for fault in gradients.audit()? {
            // The bias of the keys shifts all scores of a row alike, so its gradient is zero.
            let excused = lengths == (1, 1) || fault.name.ends_with("key.bias");
            assert!(excused && fault.kind == FaultKind::Zero, "{label}: {fault}");
        }
    }
    Ok(())
}

#[test]
fn every_parameter_has_a_gradient_that_agrees_with_finite_differences() -> Result<()> {
    for layer in layers(DType::F64)? {
        for lengths in [(1, 1), layer.usual(), (MAX_SEQ_LEN, MAX_SEQ_LEN)] {
            check_gradients(&layer, lengths, Mode::Eval)?;
        }
    }
    Ok(())
}

#[test]
fn the_gradients_agree_with_finite_differences_under_dropout() -> Result<()> {
    for layer in layers(DType::F64)? {
        check_gradients(&layer, layer.usual(), Mode::train(stream(1)))?;
    }
    Ok(())
}

#[test]
fn the_input_has_a_gradient_that_agrees_with_finite_differences() -> Result<()> {
    for layer in layers(DType::F64)? {
        let lengths = layer.usual();
        let shape = |len| (BATCH, len, layer.d_model);
        // As parameters, so that the same check applies to them.
        let inputs = ParamStore::new(3, DType::F64, device());
        let init = candle_nn::Init::Randn { mean: 0., stdev: 1. };
        let x = inputs.trainable().get_with_hints(shape(lengths.0), "x", init)?;
        let memory = match layer.reads {
            Reads::Memory => {
                Some(inputs.trainable().get_with_hints(shape(lengths.1), "memory", init)?)
            }
            Reads::Everything | Reads::Past => None,
        };
        for masking in layer.maskings() {
            let call = Call { x: x.clone(), memory: memory.clone(), masking };
            let label = format!("{}, {masking:?}", layer.label);
            let gradients =
                checked_gradients(&label, &inputs, 2, || layer.loss(&call, Mode::Eval))?;
            assert_eq!(gradients.audit()?, [], "{label}");
        }
    }
    Ok(())
}

#[test]
fn examples_in_a_batch_do_not_affect_each_other() -> Result<()> {
    for layer in layers(DType::F32)? {
        for masking in layer.maskings() {
            let call = layer.call(layer.usual(), masking)?;
            for row in 0..BATCH {
                let others = |x: &Tensor| disturbed(x, |other, _| other != row);
                let memory = call.memory.as_ref().map(others).transpose()?;
                let other = Call { x: others(&call.x)?, memory, masking };
                let outputs = [&call, &other].map(|call| layer.forward(call, Mode::Eval));
                let [a, b] = outputs;
                assert_same(&layer.label, &a?, &b?, |at, _| at == row)?;
            }
        }
    }
    Ok(())
}

#[test]
fn padded_keys_do_not_affect_real_positions() -> Result<()> {
    for layer in layers(DType::F32)? {
        for lengths in layer.lengths() {
            for masking in layer.maskings().filter(|&masking| masking.is_padded()) {
                let call = layer.call(lengths, masking)?;
                let padding = |row, at| masking.is_padding(row, at, lengths.1);
                let other = match &call.memory {
                    Some(memory) => {
                        Call { memory: Some(disturbed(memory, padding)?), ..call.clone() }
                    }
                    None => Call { x: disturbed(&call.x, padding)?, ..call.clone() },
                };
                let (a, b) =
                    (layer.forward(&call, Mode::Eval)?, layer.forward(&other, Mode::Eval)?);
                let is_real = |row, at| call.memory.is_some() || !padding(row, at);
                assert_same(&layer.label, &a, &b, is_real)?;
            }
        }
    }
    Ok(())
}

/// For kinds that count tokens, not positions: those on the gated delta rule ([`Attention::resume`]), and two more.
#[test]
fn padding_anywhere_leaves_what_the_tokens_give_alone() -> Result<()> {
    let counts = |layer: &&Layer| {
        let has_state = ["retention", "rwkv", "rwkv7", "kda", "mamba2"].contains(&layer.kind);
        has_state && layer.position == "none"
    };
    for layer in layers(DType::F64)?.iter().filter(counts) {
        let call = layer.call((MAX_SEQ_LEN, MAX_SEQ_LEN), Masking::None)?;
        let flags = [[1_u8, 0, 0, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0, 1]];
        let mask = Mask::none().with_key_padding_mask(&Tensor::new(&flags, device())?)?;
        let input = AttentionInput::new(&call.x, &mask, Mode::Eval);
        let padded = layer.attention.forward(&input)?;
        let maps = layer.attention.weights(&input)?;
        for (row, flags) in flags.into_iter().enumerate() {
            let real: Vec<u32> = (0..7).filter(|&at| flags[at as usize] == 0).collect();
            let real = Tensor::new(real, device())?;
            let x = call.x.narrow(0, row, 1)?.index_select(&real, 1)?;
            let none = Mask::none();
            let alone = AttentionInput::new(&x, &none, Mode::Eval);
            let y = padded.narrow(0, row, 1)?.index_select(&real, 1)?;
            assert_close(&layer.label, &y, &layer.attention.forward(&alone)?)?;
            let map = maps.narrow(0, row, 1)?.index_select(&real, 2)?.index_select(&real, 3)?;
            assert_close(&layer.label, &map, &layer.attention.weights(&alone)?)?;
        }
    }
    Ok(())
}

/// So sequences of different lengths may share a batch.
#[test]
fn padding_at_the_end_gives_what_the_sequence_alone_gives() -> Result<()> {
    for layer in layers(DType::F64)?.iter().filter(|layer| layer.ignores_padding) {
        for (q_len, kv_len) in layer.lengths() {
            let masking = Masking::Padding;
            let n_real = (0..kv_len).filter(|&at| !masking.is_padding(0, at, kv_len)).count();
            if n_real == kv_len {
                continue;
            }
            let call = layer.call((q_len, kv_len), masking)?;
            let padded = layer.forward(&call, Mode::Eval)?;
            let without = |x: &Tensor| x.narrow(1, 0, n_real);
            let (x, memory, padded) = match &call.memory {
                Some(memory) => (call.x.clone(), Some(without(memory)?), padded),
                None => (without(&call.x)?, None, without(&padded)?),
            };
            let alone = layer.forward(&Call { x, memory, masking: Masking::None }, Mode::Eval)?;
            let label = format!("{}, {n_real} of {kv_len}", layer.label);
            let first = |y: &Tensor| y.narrow(0, 0, 1);
            assert_close(&label, &first(&padded)?, &first(&alone)?)?;
        }
    }
    Ok(())
}

#[test]
fn the_future_does_not_affect_the_past() -> Result<()> {
    for layer in layers(DType::F32)?.iter().filter(|layer| layer.reads == Reads::Past) {
        for masking in layer.maskings() {
            let call = layer.call((MAX_SEQ_LEN, MAX_SEQ_LEN), masking)?;
            let y = layer.forward(&call, Mode::Eval)?;
            for now in 0..MAX_SEQ_LEN {
                let x = disturbed(&call.x, |_, at| at > now)?;
                let other = layer.forward(&Call { x, ..call.clone() }, Mode::Eval)?;
                assert_same(&layer.label, &y, &other, |_, at| at <= now)?;
            }
        }
    }
    Ok(())
}

/// Encodings that act in attention depend only on relative positions, so moving a document does not change
/// its outputs.
#[test]
fn documents_packed_into_one_sequence_give_what_each_gives_alone() -> Result<()> {
    for layer in layers(DType::F64)?.iter().filter(|layer| layer.takes_segments) {
        let call = layer.call((MAX_SEQ_LEN, MAX_SEQ_LEN), Masking::Segments)?;
        let packed = layer.forward(&call, Mode::Eval)?;
        for (row, documents) in
            [&[(0, 2), (2, 5)][..], &[(0, 3), (3, 3), (6, 1)]].iter().enumerate()
        {
            for &(start, len) in *documents {
                let document = |x: &Tensor| x.narrow(0, row, 1)?.narrow(1, start, len);
                let x = document(&call.x)?;
                let alone =
                    layer.forward(&Call { x, memory: None, masking: Masking::None }, Mode::Eval)?;
                let label = format!("{}, example {row} at {start}", layer.label);
                assert_close(&label, &document(&packed)?, &alone)?;
            }
        }
    }
    Ok(())
}

#[test]
fn segments_that_could_not_be_kept_apart_are_refused() -> Result<()> {
    let layers = layers(DType::F32)?;
    assert!(layers.iter().any(|layer| layer.takes_segments));
    for layer in layers.iter().filter(|layer| !layer.takes_segments) {
        let call = layer.call((MAX_SEQ_LEN, MAX_SEQ_LEN), Masking::Segments)?;
        let error = layer.forward(&call, Mode::Eval).expect_err(&layer.label).to_string();
        assert!(error.contains("segments were given"), "{}: {error}", layer.label);
    }
    Ok(())
}

#[test]
fn evaluation_is_deterministic_and_dropout_is_a_function_of_the_stream() -> Result<()> {
    for layer in layers(DType::F32)? {
        let call = layer.call(layer.usual(), Masking::None)?;
        let output = |mode| values(&layer.forward(&call, mode)?);
        assert_eq!(output(Mode::Eval)?, output(Mode::Eval)?, "{}", layer.label);
        let trained = output(Mode::train(stream(0)))?;
        assert_eq!(trained, output(Mode::train(stream(0)))?, "{}", layer.label);
        assert_ne!(trained, output(Mode::train(stream(1)))?, "{}", layer.label);
        assert_ne!(trained, output(Mode::Eval)?, "{}", layer.label);
    }
    Ok(())
}

#[test]
fn the_weights_of_a_row_sum_to_what_the_kind_says_and_forbidden_keys_have_none() -> Result<()> {
    for layer in layers(DType::F32)? {
        for lengths in layer.lengths() {
            for masking in layer.maskings() {
                let call = layer.call(lengths, masking)?;
                let weights =
                    layer.with_input(&call, Mode::Eval, |input| layer.attention.weights(input))?;
                let (batch, n_maps, q_len, kv_len) = weights.dims4()?;
                assert_eq!((batch, (q_len, kv_len)), (BATCH, lengths), "{}", layer.label);
                let rows = weights.flatten_to(2)?.to_vec2::<f32>()?;
                for (index, weights) in rows.iter().enumerate() {
                    let (row, i) = (index / (n_maps * q_len), index % q_len);
                    let allowed = |j: usize| layer.may_read(masking, [row, i, j], kv_len);
                    let label = format!("{}, {masking:?}, query {i} of {row}", layer.label);
                    for (j, &weight) in weights.iter().enumerate() {
                        assert!(allowed(j) || weight == 0., "{label}: key {j} is forbidden");
                    }
                    let most = if (0..kv_len).any(allowed) { 1. } else { 0. };
                    let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
                    let holds = match layer.attention.row_sum() {
                        RowSum::One => (sum - most).abs() < ERROR,
                        RowSum::AtMostOne => (-ERROR..most + ERROR).contains(&sum),
                        RowSum::Any => sum.is_finite(),
                    };
                    assert!(holds, "{label}: {sum} where {most} may be read");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn the_cost_counts_every_parameter_and_grows_with_the_sequence() -> Result<()> {
    for layer in layers(DType::F32)? {
        let [cost, longer] = layer.costs;
        let parameters = layer.store.tensors();
        let own = parameters.iter().filter(|(name, _)| name.starts_with("attention."));
        let counted: usize = own.map(|(_, parameter)| parameter.elem_count()).sum();
        assert_eq!(cost.parameters, counted as f64, "{}", layer.label);
        assert!(cost.flops > 0. && cost.flops < longer.flops, "{}", layer.label);
        assert!(cost.activations < longer.activations, "{}", layer.label);
    }
    Ok(())
}

/// The outputs of `layer` in incremental decoding of `x`, in steps of `lens` positions.
fn decoded(layer: &Layer, call: &Call, mask: &Mask, lens: &[usize]) -> Result<Tensor> {
    let memory = call.memory.as_ref().map(|states| Memory { states, mask });
    let mut state = decoding::initial_state(layer.attention.as_ref(), memory)?;
    let (mut outputs, mut start) = (Vec::new(), 0);
    for &len in lens {
        let bias = layer.score_bias.as_ref().map(|bias| bias.bias(len, start + len)).transpose()?;
        outputs.push(state.step(&call.x.narrow(1, start, len)?, bias.as_ref())?);
        start += len;
    }
    Tensor::cat(&outputs, 1)
}

fn assert_close(label: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    let difference = values(&(a - b)?)?.into_iter().fold(0_f64, |max, x| max.max(x.abs()));
    assert!(difference < 1e-9, "{label}: {difference}");
    Ok(())
}

#[test]
fn stepwise_decoding_equals_the_forward_pass() -> Result<()> {
    let layers = layers(DType::F64)?;
    for layer in layers.iter().filter(|layer| layer.reads != Reads::Everything) {
        let masks: &[Masking] = match layer.reads {
            Reads::Memory => &[Masking::None, Masking::Padding],
            Reads::Everything | Reads::Past => &[Masking::None],
        };
        for &masking in masks {
            let call = layer.call((MAX_SEQ_LEN, MAX_SEQ_LEN), masking)?;
            let mask = masking.build(MAX_SEQ_LEN, MAX_SEQ_LEN, DType::F64)?;
            let whole = layer.forward(&call, Mode::Eval)?;
            for lens in [&[1; MAX_SEQ_LEN][..], &[3, 1, 3], &[MAX_SEQ_LEN]] {
                let label = format!("{}, {masking:?}, steps {lens:?}", layer.label);
                assert_close(&label, &decoded(layer, &call, &mask, lens)?, &whole)?;
            }
        }
    }
    Ok(())
}

#[test]
fn select_continues_a_row_from_the_state_of_another() -> Result<()> {
    let rows = Tensor::new(&[1_u32, 1, 0], device())?;
    let layers = layers(DType::F64)?;
    for layer in layers.iter().filter(|layer| layer.reads != Reads::Everything) {
        let call = layer.call((MAX_SEQ_LEN, MAX_SEQ_LEN), Masking::None)?;
        let mask = Mask::none();
        let memory = call.memory.as_ref().map(|states| Memory { states, mask: &mask });
        let mut state = decoding::initial_state(layer.attention.as_ref(), memory)?;
        let bias =
            |n_new, len| layer.score_bias.as_ref().map(|bias| bias.bias(n_new, len)).transpose();
        let past = call.x.narrow(1, 0, 2)?.contiguous()?;
        state.step(&past, bias(2, 2)?.as_ref())?;
        state.select(&rows)?;
        let next = normal(5, &[3, 1, layer.d_model], DType::F64)?;
        let y = state.step(&next, bias(1, 3)?.as_ref())?;

        let x = Tensor::cat(&[&past.index_select(&rows, 0)?, &next], 1)?;
        let memory =
            call.memory.as_ref().map(|memory| memory.index_select(&rows, 0)).transpose()?;
        let whole = layer.forward(&Call { x, memory, masking: Masking::None }, Mode::Eval)?;
        assert_close(&layer.label, &y, &whole.narrow(1, 2, 1)?)?;
    }
    Ok(())
}

fn resumed(layer: &Layer, x: &Tensor, mask: &Mask, past: &mut State) -> Result<Option<Tensor>> {
    layer.attention.resume(&AttentionInput::new(x, mask, Mode::Eval), past)
}

fn assert_same_state(label: &str, a: &State, b: &State) -> Result<()> {
    let names = |state: &State| state.tensors().map(|(name, _)| name).collect::<Vec<_>>();
    assert_eq!(names(a), names(b), "{label}");
    a.tensors().zip(b.tensors()).try_for_each(|((_, a), (_, b))| assert_close(label, a, b))
}

#[test]
fn a_layer_with_a_state_goes_on_from_it_and_passes_over_padding() -> Result<()> {
    let mut kinds = BTreeSet::new();
    for layer in layers(DType::F64)?.iter().filter(|layer| layer.reads == Reads::Past) {
        let call = layer.call((MAX_SEQ_LEN, MAX_SEQ_LEN), Masking::None)?;
        let (x, none, label) = (&call.x, Mask::none(), layer.label.as_str());
        let mut last = State::default();
        let Some(whole) = resumed(layer, x, &none, &mut last)? else { continue };
        kinds.insert(layer.kind);
        assert_close(label, &whole, &layer.forward(&call, Mode::Eval)?)?;
        for at in 1..MAX_SEQ_LEN {
            let mut past = State::default();
            let parts = [(0, at), (at, MAX_SEQ_LEN - at)].map(|(from, len)| {
                let y = resumed(layer, &x.narrow(1, from, len)?, &none, &mut past)?;
                Ok(y.expect("a state"))
            });
            let parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
            assert_close(label, &Tensor::cat(&parts, 1)?, &whole)?;
            assert_same_state(label, &past, &last)?;
        }
        // Two positions of padding before, in the middle and after.
        let noise = (normal(23, &[BATCH, 2, layer.d_model], DType::F64)? * 100.)?;
        for at in [0, 2, 5] {
            let (before, after) = (x.narrow(1, 0, at)?, x.narrow(1, at, 5 - at)?);
            let parts = [&before, &noise, &after];
            let parts: Vec<_> = parts.into_iter().filter(|x| x.elem_count() > 0).collect();
            let padded = Tensor::cat(&parts, 1)?;
            let flags = (0..BATCH * 7).map(|i| u8::from((at..at + 2).contains(&(i % 7))));
            let flags = Tensor::from_vec(flags.collect(), (BATCH, 7), device())?;
            let mask = Mask::none().with_key_padding_mask(&flags)?;
            let (mut alone, mut past) = (State::default(), State::default());
            let expected = resumed(layer, &x.narrow(1, 0, 5)?, &none, &mut alone)?;
            let y = resumed(layer, &padded, &mask, &mut past)?.expect("a state");
            let y = Tensor::cat(&[y.narrow(1, 0, at)?, y.narrow(1, at + 2, 5 - at)?], 1)?;
            assert_close(label, &y, &expected.expect("a state"))?;
            assert_same_state(label, &past, &alone)?;
        }
    }
    let recurrent = [
        "deltanet",
        "gated_deltanet",
        "gdn2",
        "gla",
        "hgrn2",
        "kda",
        "lightning",
        "mamba2",
        "rwkv7",
    ];
    assert_eq!(kinds, BTreeSet::from(recurrent));
    Ok(())
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Document {
    attention: AttentionConfig,
}

#[test]
fn a_configuration_survives_toml() {
    for kind in AttentionConfig::KINDS {
        let attention = AttentionConfig::default_of(kind.name).unwrap();
        assert_eq!(attention.kind(), kind.name);
        let document = Document { attention };
        let text = toml::to_string(&document).unwrap();
        assert_eq!(toml::from_str::<Document>(&text).unwrap(), document, "{text}");
        let value = changed(toml::Value::try_from(document).unwrap());
        let document: Document = toml::from_str(&toml::to_string(&value).unwrap()).unwrap();
        assert_eq!(toml::Value::try_from(document).unwrap(), value);
    }
}

/// The same settings with every flag inverted and every number doubled.
fn changed(value: toml::Value) -> toml::Value {
    use toml::Value::{Boolean, Float, Integer, Table};
    match value {
        Boolean(flag) => Boolean(!flag),
        Integer(n) => Integer(2 * n),
        Float(x) => Float(2. * x),
        Table(table) => {
            Table(table.into_iter().map(|(key, value)| (key, changed(value))).collect())
        }
        other => other,
    }
}
