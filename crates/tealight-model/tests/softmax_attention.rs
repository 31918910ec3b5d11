//! Softmax attention beyond its defaults: scores, shared heads, norms of queries and keys, windows.

mod common;
#[path = "common/differences.rs"]
mod differences;

use candle_core::{D, DType, Result, Tensor};
use common::{normal, values};
use differences::checked_gradients;
use tealight_model::attention::qk_norm::NormOver;
use tealight_model::attention::score::Score;
use tealight_model::attention::{AttentionConfig, decoding, local, softmax};
use tealight_model::init::Normal;
use tealight_model::names::Named;
use tealight_model::position::{AttentionNeeds, PositionConfig, PositionSpec};
use tealight_model::{
    Attention, AttentionInput, AttentionSpec, Bias, BuildError, BuildResult, Initializer,
    LayerPlace, Mask, Memory, Mode, ParamStore, Reads, init::InitConfig,
};
use tealight_ops::gradients::FaultKind;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::testing::device;

const BATCH: usize = 2;
const LEN: usize = 7;
const N_HEADS: usize = 4;
/// 4 × 6: rotary positions need an even head_dim.
const D_MODEL: usize = 24;
const DROPOUT: f64 = 0.3;

const SHARED: [Option<usize>; 3] = [None, Some(2), Some(1)];

fn softmax(score: Score, n_kv_heads: Option<usize>, qk_norm: bool) -> AttentionConfig {
    AttentionConfig::Softmax(softmax::Config { score, n_kv_heads, qk_norm, ..Default::default() })
}

fn local(window: usize, n_kv_heads: Option<usize>, qk_norm: bool) -> AttentionConfig {
    AttentionConfig::Local(local::Config { window, n_kv_heads, qk_norm, ..Default::default() })
}

fn normalised_together(n_kv_heads: Option<usize>, qk_norm: bool) -> AttentionConfig {
    let qk_norm_over = NormOver::AllHeads;
    AttentionConfig::Softmax(softmax::Config {
        n_kv_heads,
        qk_norm,
        qk_norm_over,
        ..Default::default()
    })
}

fn all_configs() -> Vec<AttentionConfig> {
    let mut configs = Vec::new();
    for n_kv_heads in SHARED {
        for qk_norm in [false, true] {
            configs.extend(Score::ALL.iter().map(|&score| softmax(score, n_kv_heads, qk_norm)));
            configs.extend([1, 3, 100].map(|window| local(window, n_kv_heads, qk_norm)));
        }
        configs.push(normalised_together(n_kv_heads, true));
    }
    configs
}

fn store() -> ParamStore {
    ParamStore::new(17, DType::F64, device())
}

fn build(
    config: &AttentionConfig,
    reads: Reads,
    position: AttentionNeeds,
    store: &ParamStore,
) -> BuildResult<Box<dyn Attention>> {
    // Inputs large enough for the scores to differ.
    let init =
        Initializer::build(&InitConfig::Normal(Normal { std: 0.3, scale_residual: false }), 1)?;
    let spec = AttentionSpec {
        d_model: D_MODEL,
        n_heads: N_HEADS,
        head_dim: None,
        max_q_len: LEN,
        max_kv_len: LEN,
        reads,
        dropout: DROPOUT,
        bias: Bias::With,
        position,
        packed: false,
        conv_size: 0,
        layer: LayerPlace::ONLY,
        init: &init,
        key: "model.attention",
    };
    let attention = config.build(&spec, &store.trainable().pp("attention"))?;
    let n_parameters: usize = store.tensors().values().map(Tensor::elem_count).sum();
    assert_eq!(config.cost(&spec, LEN, LEN).parameters, n_parameters as f64, "{config:?}");
    Ok(attention)
}

/// `None` if the layer is refused with an error that names the key.
fn built(
    config: &AttentionConfig,
    reads: Reads,
    position: AttentionNeeds,
    store: &ParamStore,
) -> Result<Option<Box<dyn Attention>>> {
    match build(config, reads, position, store) {
        Ok(attention) => Ok(Some(attention)),
        Err(BuildError::Candle(error)) => Err(error),
        Err(BuildError::Config(fault)) => {
            assert!(!fault.keys.is_empty(), "{fault}");
            Ok(None)
        }
    }
}

/// No positions, rotary positions, and learnt relative biases.
fn positions(causal: bool) -> Result<Vec<tealight_model::position::Position>> {
    let kinds = ["none", "rotary", "relative"];
    let spec = PositionSpec {
        d_model: D_MODEL,
        n_heads: N_HEADS,
        head_dim: D_MODEL / N_HEADS,
        max_seq_len: LEN,
        causal,
        has_padding: false,
        grid: None,
    };
    let build = |kind: &&str| {
        let config = PositionConfig::default_of(kind).expect("a kind");
        let built = config.build(&spec, &store().trainable());
        built.map_err(candle_core::Error::wrap)
    };
    kinds.iter().map(build).collect()
}

fn states(index: u64, len: usize) -> Result<Tensor> {
    normal(index, &[BATCH, len, D_MODEL], DType::F64)
}

/// The second example ends in padding.
fn padded() -> Result<Mask> {
    let flags = (0..BATCH * LEN).map(|i| u8::from(i == BATCH * LEN - 1)).collect();
    Mask::none().with_key_padding_mask(&Tensor::from_vec(flags, (BATCH, LEN), device())?)
}

fn assert_close(label: &str, a: &Tensor, b: &Tensor) -> Result<()> {
    let difference = values(&(a - b)?)?.into_iter().fold(0_f64, |max, x| max.max(x.abs()));
    assert!(difference < 1e-9, "{label}: {difference}");
    Ok(())
}

#[test]
fn every_setting_has_right_gradients() -> Result<()> {
    let (x, mask) = (states(0, LEN)?, padded()?);
    for config in all_configs() {
        for reads in [Reads::Everything, Reads::Past, Reads::Memory] {
            let store = store();
            let layer = built(&config, reads, AttentionNeeds::Nothing, &store)?;
            let Some(attention) = layer else { continue };
            let memory = (reads == Reads::Memory).then(|| states(1, LEN)).transpose()?;
            let mode = Mode::train(Stream::new(3, Purpose::Dropout));
            let input =
                AttentionInput { memory: memory.as_ref(), ..AttentionInput::new(&x, &mask, mode) };
            let loss = || (attention.forward(&input)? * states(99, LEN)?)?.sum_all();
            let label = format!("{config:?}, {reads:?}");
            let gradients = checked_gradients(&label, &store, 1, loss)?;
            // With a window of one, each query has one key, and scores have no gradient.
            let alone = matches!(&config, AttentionConfig::Local(local) if local.window == 1);
            for fault in gradients.audit()? {
                let scores = ["key", "query"].iter().any(|part| fault.name.contains(part));
                let excused = fault.name == "attention.key.bias" || (alone && scores);
                assert!(excused && fault.kind == FaultKind::Zero, "{label}: {fault}");
            }
        }
    }
    Ok(())
}

#[test]
fn stepwise_decoding_equals_the_forward_pass() -> Result<()> {
    let x = states(0, LEN)?;
    for config in all_configs() {
        for reads in [Reads::Past, Reads::Memory] {
            for position in positions(true)? {
                if reads == Reads::Memory && !matches!(position.needs(), AttentionNeeds::Nothing) {
                    continue;
                }
                let Some(attention) = built(&config, reads, position.needs(), &store())? else {
                    continue;
                };
                let states = (reads == Reads::Memory).then(|| states(1, LEN)).transpose()?;
                let padding = padded()?;
                let bias = |n_new, len| {
                    position.score_bias.as_ref().map(|bias| bias.bias(n_new, len)).transpose()
                };
                let mask = match bias(LEN, LEN)? {
                    Some(bias) => Mask::none().with_attn_mask(&bias)?,
                    None if reads == Reads::Memory => padding.clone(),
                    None => Mask::none(),
                };
                let memory = states.as_ref();
                let input = AttentionInput { memory, ..AttentionInput::new(&x, &mask, Mode::Eval) };
                let whole = attention.forward(&input)?;

                let memory = states.as_ref().map(|states| Memory { states, mask: &padding });
                let kept = attention.decoding_state(memory)?;
                let label = format!("{config:?}, {reads:?}");
                assert!(kept.is_some(), "{label} keeps nothing");
                for lens in [&[1; LEN][..], &[3, 1, 3], &[LEN]] {
                    let mut state = decoding::initial_state(attention.as_ref(), memory)?;
                    let (mut outputs, mut start) = (Vec::new(), 0);
                    for &len in lens {
                        let bias = bias(len, start + len)?;
                        outputs.push(state.step(&x.narrow(1, start, len)?, bias.as_ref())?);
                        start += len;
                    }
                    assert_close(&label, &Tensor::cat(&outputs, 1)?, &whole)?;
                }
            }
        }
    }
    Ok(())
}

#[test]
fn a_window_is_softmax_attention_under_a_mask() -> Result<()> {
    let x = states(0, LEN)?;
    for window in [1, 2, 4, LEN, 100] {
        for reads in [Reads::Everything, Reads::Past] {
            let near = |i: usize, j: usize| i.abs_diff(j) < window;
            let far = (0..LEN * LEN).map(|at| near(at / LEN, at % LEN));
            let far = far.map(|near| if near { 0. } else { f64::NEG_INFINITY }).collect();
            let far = Tensor::from_vec(far, (LEN, LEN), device())?;
            let both = [
                (local(window, Some(2), false), Mask::none()),
                (softmax(Score::ScaledDot, Some(2), false), Mask::none().with_attn_mask(&far)?),
            ];
            let both = both.map(|(config, mask)| -> Result<[Tensor; 2]> {
                let layer = built(&config, reads, AttentionNeeds::Nothing, &store())?;
                let layer = layer.expect("a layer");
                let input = AttentionInput::new(&x, &mask, Mode::Eval);
                Ok([layer.forward(&input)?, layer.weights(&input)?])
            });
            let [local, masked] = both;
            for (a, b) in local?.iter().zip(&masked?) {
                assert_close(&format!("{window}, {reads:?}"), a, b)?;
            }
        }
    }
    Ok(())
}

#[test]
fn the_weights_of_a_row_sum_to_one_whatever_the_setting() -> Result<()> {
    let (x, mask) = (states(0, LEN)?, Mask::none());
    for config in all_configs() {
        let layer = built(&config, Reads::Past, AttentionNeeds::Nothing, &store())?;
        let layer = layer.expect("a layer");
        let input = AttentionInput::new(&x, &mask, Mode::Eval);
        let weights = layer.weights(&input)?;
        assert_eq!(weights.dims(), [BATCH, N_HEADS, LEN, LEN]);
        let sums = values(&weights.sum(D::Minus1)?)?;
        assert!(sums.iter().all(|sum| (sum - 1.).abs() < 1e-12), "{config:?}: {sums:?}");
    }
    Ok(())
}

/// Queries and keys have a mean square of one, so no score exceeds √head_dim.
#[test]
fn normalised_queries_and_keys_bound_the_scores() -> Result<()> {
    let x = (states(0, LEN)? * 1e4)?;
    let layer = built(
        &softmax(Score::Dot, None, true),
        Reads::Everything,
        AttentionNeeds::Nothing,
        &store(),
    )?;
    let mask = Mask::none();
    let input = AttentionInput::new(&x, &mask, Mode::Eval);
    let weights = values(&layer.expect("a layer").weights(&input)?)?;
    let head_dim = (D_MODEL / N_HEADS) as f64;
    let least = (-2. * head_dim).exp() / LEN as f64;
    assert!(weights.iter().all(|&weight| weight > least), "{weights:?}");
    Ok(())
}

#[test]
fn settings_out_of_range_are_refused_by_key() {
    for (config, reads, keys, part) in [
        (
            softmax(Score::Dot, Some(3), false),
            Reads::Past,
            "model.attention.n_kv_heads",
            "= 3 does not divide `model.n_heads` = 4",
        ),
        (
            softmax(Score::Additive, Some(0), false),
            Reads::Past,
            "model.attention.n_kv_heads",
            "= 0 must be positive",
        ),
        (
            softmax(Score::Dot, Some(1 << 20), false),
            Reads::Past,
            "model.attention.n_kv_heads",
            "= 1048576 does not divide",
        ),
        (local(5, Some(8), true), Reads::Past, "model.attention.n_kv_heads", "= 8 does not divide"),
        (
            normalised_together(None, false),
            Reads::Past,
            "model.attention.qk_norm_over",
            "needs `model.attention.qk_norm` = true",
        ),
        (local(0, None, false), Reads::Past, "model.attention.window", "= 0 must be positive"),
        (
            local(5, None, false),
            Reads::Memory,
            "model.attention.kind",
            "no neighbourhood in another",
        ),
    ] {
        let error = build(&config, reads, AttentionNeeds::Nothing, &store());
        let Err(BuildError::Config(fault)) = error else { panic!("{config:?} is built") };
        assert_eq!(fault.keys, [keys], "{fault}");
        assert!(fault.to_string().contains(part), "{fault}");
    }
}
