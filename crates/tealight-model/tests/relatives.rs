//! Relatives of softmax attention at settings at which they are another kind, and long sequences, whose rows are computed
//! some at a time.

mod common;

use candle_core::{D, DType, Error, Result, Tensor, Var};
use candle_nn::VarBuilder;
use common::{normal, values};
use tealight_model::attention::decoding::initial_state;
use tealight_model::attention::{AttentionConfig, LayerPlace, log_linear};
use tealight_model::init::InitConfig;
use tealight_model::position::AttentionNeeds;
use tealight_model::{
    Attention, AttentionInput, AttentionSpec, Bias, Initializer, Mask, Mode, ParamStore, Reads,
};
use tealight_ops::backward;
use tealight_ops::testing::device;

const BATCH: usize = 2;
const LEN: usize = 11;
const N_HEADS: usize = 3;
const HEAD_DIM: usize = 4;
const D_MODEL: usize = 10;
const WIDTH: usize = N_HEADS * HEAD_DIM;

type Parameters = Vec<(&'static str, Tensor)>;

/// W^Q, W^K, W^V and W^O, the same in each test.
fn maps() -> Result<Parameters> {
    let of = |i, shape: [usize; 2]| normal(i, &shape, DType::F64)? * 0.4;
    Ok(vec![
        ("query.weight", of(1, [WIDTH, D_MODEL])?),
        ("key.weight", of(2, [WIDTH, D_MODEL])?),
        ("value.weight", of(3, [WIDTH, D_MODEL])?),
        ("output.weight", of(4, [D_MODEL, WIDTH])?),
    ])
}

/// A layer of these settings with the maps and `others`.
fn layer(
    settings: &str,
    reads: Reads,
    len: usize,
    others: Parameters,
) -> Result<Box<dyn Attention>> {
    let parameters = maps()?.into_iter().chain(others);
    let parameters = parameters.map(|(name, tensor)| (name.to_owned(), tensor)).collect();
    built(settings, reads, len, &VarBuilder::from_tensors(parameters, DType::F64, device()))
}

fn built(
    settings: &str,
    reads: Reads,
    len: usize,
    vb: &VarBuilder<'_>,
) -> Result<Box<dyn Attention>> {
    let config: AttentionConfig = toml::from_str(settings).expect("settings of a kind");
    let init = Initializer::build(&InitConfig::default(), 1).map_err(Error::wrap)?;
    let spec = AttentionSpec {
        d_model: D_MODEL,
        n_heads: N_HEADS,
        head_dim: Some(HEAD_DIM),
        max_q_len: len,
        max_kv_len: len,
        reads,
        dropout: 0.,
        bias: Bias::Without,
        position: AttentionNeeds::Nothing,
        packed: false,
        conv_size: 0,
        layer: LayerPlace::ONLY,
        init: &init,
        key: "model.attention",
    };
    config.build(&spec, vb).map_err(Error::wrap)
}

fn forward(layer: &dyn Attention, x: &Tensor, mask: &Mask) -> Result<Tensor> {
    layer.forward(&AttentionInput::new(x, mask, Mode::Eval))
}

fn weights(layer: &dyn Attention, x: &Tensor, mask: &Mask) -> Result<Tensor> {
    layer.weights(&AttentionInput::new(x, mask, Mode::Eval))
}

fn assert_close(label: &str, actual: &Tensor, expected: &Tensor, tolerance: f64) -> Result<()> {
    let difference =
        values(&(actual - expected)?)?.into_iter().fold(0_f64, |max, x| max.max(x.abs()));
    assert!(difference < tolerance, "{label}: off by {difference:e}");
    Ok(())
}

fn input(len: usize) -> Result<Tensor> {
    normal(9, &[BATCH, len, D_MODEL], DType::F64)
}

fn assert_same_layers(
    a: &dyn Attention,
    b: &dyn Attention,
    mask: &Mask,
    label: &str,
) -> Result<()> {
    let x = input(LEN)?;
    assert_close(label, &forward(a, &x, mask)?, &forward(b, &x, mask)?, 1e-9)
}

const SOFTMAX: &str = "kind = 'softmax'";

#[test]
fn a_low_sink_is_softmax_and_a_high_one_takes_all() -> Result<()> {
    let sink = |z: f64| Result::Ok(vec![("sink", Tensor::full(z, N_HEADS, device())?)]);
    let of = |z| layer("kind = 'softmax'\nsink = 'learnt'", Reads::Past, LEN, sink(z)?);
    let softmax = layer(SOFTMAX, Reads::Past, LEN, Vec::new())?;
    let none = Mask::none();
    assert_same_layers(of(-1e4)?.as_ref(), softmax.as_ref(), &none, "−10,000")?;
    let y = forward(of(1e4)?.as_ref(), &input(LEN)?, &none)?;
    assert!(values(&y)?.iter().all(|&y| y == 0.));
    // One in the denominator is a sink of 0.
    let one = layer("kind = 'softmax'\nsink = 'one'", Reads::Past, LEN, Vec::new())?;
    assert_same_layers(of(0.)?.as_ref(), one.as_ref(), &none, "one")
}

/// By σ(ln Σ e^s − z).
#[test]
fn a_sink_scales_what_softmax_gives() -> Result<()> {
    let sink = normal(5, &[N_HEADS], DType::F64)?;
    let others = vec![("sink", sink.clone())];
    let with = layer("kind = 'softmax'\nsink = 'learnt'", Reads::Everything, LEN, others)?;
    let without = layer(SOFTMAX, Reads::Everything, LEN, Vec::new())?;
    let (x, none) = (input(LEN)?, Mask::none());
    let [query, key] = [0, 1].map(|map| {
        let heads = x.broadcast_matmul(&maps()?[map].1.t()?)?;
        heads.reshape((BATCH, LEN, N_HEADS, HEAD_DIM))?.transpose(1, 2)?.contiguous()
    });
    let scores = (query?.matmul(&key?.t()?)? / (HEAD_DIM as f64).sqrt())?;
    let total = scores.exp()?.sum_keepdim(D::Minus1)?;
    let beside = sink.exp()?.reshape((1, N_HEADS, 1, 1))?;
    let share = total.broadcast_div(&total.broadcast_add(&beside)?)?;
    let scaled = weights(without.as_ref(), &x, &none)?.broadcast_mul(&share)?;
    assert_close("scaled", &weights(with.as_ref(), &x, &none)?, &scaled, 1e-12)
}

#[test]
fn reflections_of_strength_zero_are_softmax() -> Result<()> {
    let of = |i, shape: &[usize]| normal(i, shape, DType::F64);
    for len in [LEN, 70] {
        let others = vec![
            ("down.weight", of(5, &[2, D_MODEL])?),
            ("up.weight", of(6, &[WIDTH, 2])?),
            ("convolution.weight", of(7, &[WIDTH, 3])?),
            ("beta.weight", Tensor::zeros((N_HEADS, D_MODEL), DType::F64, device())?),
            ("beta.bias", Tensor::full(-60., N_HEADS, device())?),
        ];
        let path = layer("kind = 'path'\nrank = 2", Reads::Past, len, others)?;
        let softmax = layer(SOFTMAX, Reads::Past, len, Vec::new())?;
        let (x, none) = (input(len)?, Mask::none());
        let expected = forward(softmax.as_ref(), &x, &none)?;
        assert_close("path", &forward(path.as_ref(), &x, &none)?, &expected, 1e-9)?;
    }
    Ok(())
}

/// Longer than a block of rows, so that what passes between blocks is seen.
#[test]
fn long_sequences_are_decoded_alike_and_documents_are_apart() -> Result<()> {
    let (len, cut) = (290, 133);
    let none = Mask::none();
    let taylor = "kind = 'linear'\nfeature_map = 'taylor'\nfeature_dim = 3";
    for settings in ["kind = 'path'", "kind = 'log_linear'", taylor] {
        let store = ParamStore::new(17, DType::F64, device());
        let layer = built(settings, Reads::Past, len, &store.trainable())?;
        let x = input(len)?;
        let whole = forward(layer.as_ref(), &x, &none)?;
        let decoded = initial_state(layer.as_ref(), None)?.step(&x, None)?;
        assert_close(settings, &decoded, &whole, 1e-9)?;
        let segments = (0..BATCH * len).map(|i| u32::from(i % len >= cut)).collect();
        let segments = Tensor::from_vec(segments, (BATCH, len), device())?;
        let Ok(packed) = forward(layer.as_ref(), &x, &Mask::none().with_segments(&segments)?)
        else {
            assert_eq!(settings, taylor);
            continue;
        };
        let alone = [(0, cut), (cut, len - cut)].map(|(first, n)| {
            forward(layer.as_ref(), &x.narrow(1, first, n)?.contiguous()?, &none)
        });
        let [first, second] = alone;
        assert_close(settings, &packed, &Tensor::cat(&[first?, second?], 1)?, 1e-9)?;
    }
    Ok(())
}

#[test]
fn gates_that_forget_nothing_are_softmax_and_constant_ones_are_alibi() -> Result<()> {
    let gates = |bias: f64| {
        let weight = Tensor::zeros((N_HEADS, D_MODEL), DType::F64, device())?;
        Result::Ok(vec![
            ("forget.weight", weight),
            ("forget.bias", Tensor::full(bias, N_HEADS, device())?),
        ])
    };
    let of = |bias| layer("kind = 'forgetting'", Reads::Past, LEN, gates(bias)?);
    let softmax = layer(SOFTMAX, Reads::Past, LEN, Vec::new())?;
    assert_same_layers(of(60.)?.as_ref(), softmax.as_ref(), &Mask::none(), "f = 1")?;
    // σ(b) = e^(−slope)
    let slope = 0.37_f64;
    let forgetting = of(-(slope.exp() - 1.).ln())?;
    let distances = (0..LEN).flat_map(|i| (0..LEN).map(move |j| slope * (j as f64 - i as f64)));
    let bias = Tensor::from_vec(distances.collect(), (LEN, LEN), device())?;
    let alibi = Mask::none().with_attn_mask(&bias)?;
    let x = input(LEN)?;
    let expected = forward(softmax.as_ref(), &x, &alibi)?;
    assert_close("slope", &forward(forgetting.as_ref(), &x, &Mask::none())?, &expected, 1e-9)
}

/// With equal halves and vectors, λ is its initial value, 0.2 in the first layer: it is 0.8 RMSNorm of softmax.
#[test]
fn equal_halves_of_differential_attention_cancel_but_for_lambda() -> Result<()> {
    let half = normal(7, &[N_HEADS, 1, HEAD_DIM / 2, D_MODEL], DType::F64)?;
    let twice = |x: &Tensor| Tensor::cat(&[x, x], 1)?.reshape((WIDTH, D_MODEL));
    let vector = normal(8, &[HEAD_DIM / 2], DType::F64)?;
    let mut others = vec![("query.weight", twice(&half)?), ("key.weight", twice(&half)?)];
    for name in ["lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"] {
        others.push((name, vector.clone()));
    }
    others.push(("norm.weight", Tensor::ones(HEAD_DIM, DType::F64, device())?));
    let layer = layer("kind = 'differential'", Reads::Past, LEN, others)?;
    let x = input(LEN)?;
    let one = heads_of(&x, &half.reshape((N_HEADS * HEAD_DIM / 2, D_MODEL))?)?;
    let expected = softmax_of(&one, &one, 1. / (HEAD_DIM as f64 / 2.).sqrt())?;
    let rows = weights(layer.as_ref(), &x, &Mask::none())?;
    assert_close("weights", &rows, &(&expected * 0.8)?, 1e-12)?;
    // The norm divides by the size of the sum, but not by that of 1 − λ.
    let context = expected.matmul(&heads_of(&x, &maps()?[2].1)?.contiguous()?)?;
    let size = ((&context * 0.8)?.sqr()?.mean_keepdim(D::Minus1)? + 1e-5)?.sqrt()?;
    let normed = (context * (0.8 * 0.8))?.broadcast_div(&size)?;
    let normed = normed.transpose(1, 2)?.reshape((BATCH, LEN, WIDTH))?;
    let y = normed.broadcast_matmul(&maps()?[3].1.t()?)?;
    assert_close("output", &forward(layer.as_ref(), &x, &Mask::none())?, &y, 1e-12)
}

/// Causal weights of softmax over products of `query` and `key (batch, n_heads, len, width)`.
fn softmax_of(query: &Tensor, key: &Tensor, scale: f64) -> Result<Tensor> {
    let scores = (query.contiguous()?.matmul(&key.t()?.contiguous()?)? * scale)?;
    let later = (0..LEN * LEN).map(|i| if i % LEN > i / LEN { f64::NEG_INFINITY } else { 0. });
    let later = Tensor::from_vec(later.collect(), (LEN, LEN), device())?;
    candle_nn::ops::softmax(&scores.broadcast_add(&later)?, D::Minus1)
}

/// `x (batch, len, n_in)` through `map (N_HEADS·width, n_in)`: `(batch, N_HEADS, len, width)`
fn heads_of(x: &Tensor, map: &Tensor) -> Result<Tensor> {
    let width = map.dim(0)? / N_HEADS;
    x.broadcast_matmul(&map.t()?)?.reshape((BATCH, LEN, N_HEADS, width))?.transpose(1, 2)
}

#[test]
fn latent_attention_whose_queries_do_not_rotate_is_softmax_over_keys_of_the_latents() -> Result<()>
{
    let of = |i, shape: [usize; 2]| normal(i, &shape, DType::F64);
    let (latent, key) = (of(31, [5, D_MODEL])?, of(32, [WIDTH, 5])?);
    let others = vec![
        ("latent.weight", latent.clone()),
        ("latent_norm.weight", Tensor::ones(5, DType::F64, device())?),
        ("rotated_key.weight", of(33, [2, D_MODEL])?),
        ("rotated_query.weight", Tensor::zeros((N_HEADS * 2, D_MODEL), DType::F64, device())?),
        ("key.weight", key.clone()),
        ("value.weight", of(34, [WIDTH, 5])?),
    ];
    let settings = "kind = 'mla'\nd_latent = 5\nd_nope = 4\nd_rope = 2\nd_value = 4";
    let layer = layer(settings, Reads::Past, LEN, others)?;
    let x = input(LEN)?;
    let latents = x.broadcast_matmul(&latent.t()?)?;
    let size = (latents.sqr()?.mean_keepdim(D::Minus1)? + 1e-6)?.sqrt()?;
    let (query, key) =
        (heads_of(&x, &maps()?[0].1)?, heads_of(&latents.broadcast_div(&size)?, &key)?);
    let expected = softmax_of(&query, &key, 1. / 6_f64.sqrt())?;
    assert_close("mla", &weights(layer.as_ref(), &x, &Mask::none())?, &expected, 1e-12)
}

#[test]
fn sparse_patterns_that_leave_nothing_out_are_softmax_or_local() -> Result<()> {
    let of = |settings: &str| layer(settings, Reads::Everything, LEN, Vec::new());
    let padding: Vec<u8> = (0..BATCH * LEN).map(|i| u8::from(i % LEN == 3 || i > 18)).collect();
    let padding = Tensor::from_vec(padding, (BATCH, LEN), device())?;
    for mask in [Mask::none(), Mask::none().with_key_padding_mask(&padding)?] {
        let all = of("kind = 'bigbird'\nblock = 2\nn_random = 100\nn_global = 0")?;
        assert_same_layers(all.as_ref(), of(SOFTMAX)?.as_ref(), &mask, "bigbird")?;
        for window in [1, 3, 100] {
            let longformer = of(&format!("kind = 'longformer'\nwindow = {window}\nn_global = 0"))?;
            let local = of(&format!("kind = 'local'\nwindow = {}", window + 1))?;
            assert_same_layers(longformer.as_ref(), local.as_ref(), &mask, "longformer")?;
        }
    }
    Ok(())
}

#[test]
fn keys_mixed_by_the_identity_are_softmax() -> Result<()> {
    let eye = Tensor::eye(LEN, DType::F64, device())?;
    let others = vec![("key_mix.weight", eye.clone()), ("value_mix.weight", eye)];
    let linformer =
        layer(&format!("kind = 'linformer'\nrank = {LEN}"), Reads::Everything, LEN, others)?;
    let softmax = layer(SOFTMAX, Reads::Everything, LEN, Vec::new())?;
    assert_same_layers(linformer.as_ref(), softmax.as_ref(), &Mask::none(), "linformer")
}

#[test]
fn levels_of_one_are_a_linear_attention_with_a_decay() -> Result<()> {
    let len = 150;
    let of = |i, width| normal(i, &[BATCH, N_HEADS, len, width], DType::F64);
    let log_decay = (normal(4, &[BATCH, N_HEADS, len], DType::F64)?.abs()? * -0.1)?;
    let operands = log_linear::Operands {
        query: of(1, HEAD_DIM)?,
        key: of(2, HEAD_DIM)?,
        value: of(3, HEAD_DIM)?,
        log_decay: log_decay.clone(),
        levels: Tensor::ones((BATCH, N_HEADS, len, 9), DType::F64, device())?,
    };
    let heads = log_linear::attend(&operands, &Mask::none())?;
    let mut state = Tensor::zeros((BATCH, N_HEADS, HEAD_DIM, HEAD_DIM), DType::F64, device())?;
    for t in 0..len {
        let at = |x: &Tensor| x.narrow(2, t, 1)?.contiguous();
        let decay = at(&log_decay)?.unsqueeze(3)?.exp()?;
        let new =
            at(&operands.key)?.transpose(2, 3)?.contiguous()?.matmul(&at(&operands.value)?)?;
        state = (state.broadcast_mul(&decay)? + new)?;
        let read = at(&operands.query)?.matmul(&state)?;
        assert_close(&format!("token {t}"), &at(&heads)?, &read, 1e-9)?;
    }
    Ok(())
}

/// Output and gradient of the input: the layer's, and those of all of its weights at once.
#[test]
fn rows_that_are_computed_some_at_a_time_are_those_of_the_whole_matrix() -> Result<()> {
    let len = 290;
    let padding: Vec<u8> = (0..BATCH * len).map(|i| u8::from(i % 7 == 3)).collect();
    let padding = Tensor::from_vec(padding, (BATCH, len), device())?;
    let segments: Vec<u32> = (0..BATCH * len).map(|i| (i % len / 100) as u32).collect();
    let segments = Tensor::from_vec(segments, (BATCH, len), device())?;
    let mask = Mask::none().with_key_padding_mask(&padding)?.with_segments(&segments)?;
    let value_map = maps()?.swap_remove(2).1;
    let output_map = maps()?.swap_remove(3).1;
    for kind in ["sparsemax", "entmax15", "top_k", "thresholded", "sigmoid", "stick_breaking"] {
        for reads in [Reads::Past, Reads::Everything] {
            let settings = format!("kind = '{kind}'");
            let Ok(layer) = layer(&settings, reads, len, Vec::new()) else {
                assert_eq!((kind, reads), ("stick_breaking", Reads::Everything));
                continue;
            };
            let x = Var::from_tensor(&input(len)?)?;
            let noise = normal(12, &[BATCH, len, D_MODEL], DType::F64)?;
            let whole = {
                let value = x.broadcast_matmul(&value_map.t()?)?;
                let value = value.reshape((BATCH, len, N_HEADS, HEAD_DIM))?.transpose(1, 2)?;
                let heads = weights(layer.as_ref(), &x, &mask)?.matmul(&value.contiguous()?)?;
                heads.transpose(1, 2)?.flatten_from(2)?.broadcast_matmul(&output_map.t()?)?
            };
            let parts = forward(layer.as_ref(), &x, &mask)?;
            let label = format!("{kind}, {reads:?}");
            assert_close(&label, &parts, &whole, 1e-9)?;
            let gradient = |y: Tensor| {
                let loss = (y * &noise)?.sum_all()?;
                let gradients = backward(&loss, [("x", x.as_tensor())])?;
                Result::Ok(gradients.get("x").expect("a gradient").clone())
            };
            assert_close(&label, &gradient(parts)?, &gradient(whole)?, 1e-8)?;
        }
    }
    Ok(())
}

#[test]
fn a_sink_and_a_gate_need_scores_that_are_products() {
    for (setting, value) in [("sink", "learnt"), ("output_gate", "headwise")] {
        let settings = format!("kind = 'softmax'\nscore = 'additive'\n{setting} = '{value}'");
        let error = layer(&settings, Reads::Past, LEN, Vec::new()).unwrap_err().to_string();
        assert!(error.contains(&format!("`model.attention.{setting}` needs a score")), "{error}");
        assert!(error.contains("`model.attention.score` = \"additive\""), "{error}");
    }
}
