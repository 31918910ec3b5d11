//! Relatives of softmax attention, and mixing by a matrix over positions: operations and whole layers.

use candle_core::{D, DType, Error, Result, Tensor};
use candle_nn::VarBuilder;
use tealight_model::attention::output_gate::OutputGate;
use tealight_model::attention::sink::Sink;
use tealight_model::attention::{
    AttentionConfig, LayerPlace, differential, fnet, forgetting, gmlp, linformer, log_linear,
    longformer, mla, path, sigmoid, softmax, stick_breaking,
};
use tealight_model::init::InitConfig;
use tealight_model::position::{AttentionNeeds, PositionConfig, PositionSpec, rotary};
use tealight_model::{Attention, AttentionInput, AttentionSpec, Bias, Initializer, Mode, Reads};
use tealight_ops::activation;
use tealight_ops::attention::{Options, attention, weights};
use tealight_ops::block_sparse_attention::{BlockLists, block_sparse_attention};
use tealight_ops::stick_breaking::{Rest, stick_breaking as break_stick};
use tealight_ops::testing::device;

use crate::layer;
use crate::mask::Mask;
use crate::record::{Case, Inputs};

/// Softmax with a sink or with gates between keys and queries.
pub(crate) fn check_softmax(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_key_mask(case)?;
    let segments = case.has("segments").then(|| case.tensor("segments").to_dtype(DType::U32));
    let segments = segments.transpose()?;
    let zeros = Tensor::zeros(case.inputs()["q"].dim(1)?, case.dtype, device())?;
    let options = |x: &Inputs, run: &dyn Fn(&Options<'_>) -> Result<Tensor>| {
        let sink = if case.op() == "off_by_one" { Some(&zeros) } else { x.get("sink") };
        run(&Options {
            causal: case.description.causal,
            window: case.description.window,
            key_padding_mask: mask.padding(),
            segments: segments.as_ref(),
            sink,
            log_forget: x.get("log_f"),
            ..Options::default()
        })
    };
    case.compare_with_gradients(|x| {
        let heads = options(x, &|options| attention(&x["q"], &x["k"], &x["v"], options))?;
        match x.get("g") {
            Some(gate) => heads.broadcast_mul(&activation::sigmoid(gate)?),
            None => Ok(heads),
        }
    })?;
    let x = case.inputs();
    if case.has("weights") {
        case.compare("weights", &options(&x, &|options| weights(&x["q"], &x["k"], options))?)?;
    }
    let (sink, output_gate) = match case.op() {
        "sink" => (Sink::Learnt, OutputGate::None),
        "off_by_one" => (Sink::One, OutputGate::None),
        "gated" if x["g"].dim(3)? == 1 => (Sink::None, OutputGate::Headwise),
        "gated" => (Sink::None, OutputGate::Elementwise),
        _ => return Ok(()),
    };
    let (_batch, n_kv_heads, ..) = x["k"].dims4()?;
    let config = softmax::Config {
        n_kv_heads: Some(n_kv_heads),
        sink,
        output_gate,
        ..softmax::Config::default()
    };
    if case.description.window.is_some() {
        Ok(())
    } else {
        layer::check(case, &AttentionConfig::Softmax(config), &mask)
    }
}

/// σ(s + b) v; and by a layer of the length n = e^(−b), whose b is not rounded to f32 as the record's.
pub(crate) fn check_sigmoid(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_key_mask(case)?;
    let bias = case.description.bias.expect("a bias");
    let of = |x: &Inputs| {
        let mut scores = (x["q"].matmul(&x["k"].t()?)? / (x["q"].dim(3)? as f64).sqrt())?;
        if case.description.causal {
            let len = scores.dim(3)?;
            let past = Tensor::tril2(len, DType::U8, device())?.broadcast_as(scores.shape())?;
            let lowest = (scores.zeros_like()? + f64::NEG_INFINITY)?;
            scores = past.where_cond(&scores, &lowest)?;
        }
        sigmoid::weights(&mask.apply_padding(&scores)?, bias)
    };
    case.compare_with_gradients(|x| of(x)?.matmul(&x["v"]))?;
    case.compare("weights", &of(&case.inputs())?)?;
    if case.dtype == DType::F64 {
        return Ok(());
    }
    let length = (-bias).exp().round() as usize;
    let config = sigmoid::Config { length, ..sigmoid::Config::default() };
    layer::check(case, &AttentionConfig::Sigmoid(config), &mask)
}

pub(crate) fn check_stick_breaking(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_key_mask(case)?;
    let is_rest = case.description.rest_to_itself;
    let rest = if is_rest { Rest::Own } else { Rest::Lost };
    let of = |x: &Inputs| {
        let scores = (x["q"].matmul(&x["k"].t()?)? / (x["q"].dim(3)? as f64).sqrt())?;
        break_stick(&mask.apply_padding(&scores)?, rest)
    };
    case.compare_with_gradients(|x| of(x)?.matmul(&x["v"]))?;
    // The record's weights are those without the rest.
    if is_rest {
        let _weights = case.tensor("weights");
    } else {
        case.compare("weights", &of(&case.inputs())?)?;
    }
    let config = stick_breaking::Config { rest: is_rest, ..stick_breaking::Config::default() };
    let config = AttentionConfig::StickBreaking(config);
    if is_rest {
        layer::check_output(case, &config, &mask)
    } else {
        layer::check(case, &config, &mask)
    }
}

/// (P₁ − λ P₂) V with its norm, by a layer that selects q, k and v from its input.
pub(crate) fn check_differential(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_key_mask(case)?;
    let x = case.inputs();
    let (_batch, n_heads, len, head_dim) = x["v"].dims4()?;
    let width = n_heads * head_dim;
    let select = |at: usize| {
        let eye = Tensor::eye(width, case.dtype, device())?;
        eye.pad_with_zeros(1, at * width, (2 - at) * width)
    };
    let layer = |x: &Inputs| {
        let mut parameters = vec![("output.weight", select(0)?.t()?)];
        for (at, name) in ["query.weight", "key.weight", "value.weight"].into_iter().enumerate() {
            parameters.push((name, select(at)?));
        }
        for name in ["lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"] {
            parameters.push((name, x[name].clone()));
        }
        parameters.push(("norm.weight", x["norm"].clone()));
        let sizes = Sizes { d_model: 3 * width, n_heads, head_dim, len };
        build(
            case,
            &AttentionConfig::Differential(differential::Config::default()),
            sizes,
            parameters,
        )
    };
    let layer_mask = layer::layer_mask(case, &mask)?;
    // (batch, n_heads, [2,] len, width) → (batch, len, all)
    let merged = |x: &Tensor| {
        let x = if x.rank() == 5 { x.flatten(1, 2)? } else { x.clone() };
        layer::merge_heads(&x)
    };
    let input =
        |x: &Inputs| Tensor::cat(&[merged(&x["q"])?, merged(&x["k"])?, merged(&x["v"])?], 2);
    let call =
        |x: &Inputs, body: &dyn Fn(&dyn Attention, &AttentionInput<'_>) -> Result<Tensor>| {
            let states = input(x)?;
            let input = AttentionInput::new(&states, &layer_mask, Mode::Eval);
            body(layer(x)?.as_ref(), &input)
        };
    case.compare_with_gradients(|x| {
        let y = call(x, &|layer, input| layer.forward(input))?.narrow(2, 0, width)?;
        let (batch, ..) = y.dims3()?;
        y.reshape((batch, len, n_heads, head_dim))?.transpose(1, 2)
    })?;
    case.compare("weights", &call(&x, &|layer, input| layer.weights(input))?)
}

/// Keys and values made of latents, and the absorbed form, in which all heads read the latents themselves.
pub(crate) fn check_latent(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_key_mask(case)?;
    let (q_nope, q_rope) = {
        let x = case.inputs();
        (x["q_nope"].dim(3)?, x["q_rope"].dim(3)?)
    };
    let options = Options {
        scale: Some(1. / ((q_nope + q_rope) as f64).sqrt()),
        causal: case.description.causal,
        key_padding_mask: mask.padding(),
        ..Options::default()
    };
    let expanded = |x: &Inputs| {
        let (_batch, n_heads, ..) = x["q_nope"].dims4()?;
        let latent = x["c"].unsqueeze(1)?;
        let key = latent.broadcast_matmul(&x["w_uk"].t()?)?;
        let (batch, len, width) = x["k_rope"].dims3()?;
        let rotated = x["k_rope"].unsqueeze(1)?.broadcast_as((batch, n_heads, len, width))?;
        let query = Tensor::cat(&[&x["q_nope"], &x["q_rope"]], 3)?;
        let value = latent.broadcast_matmul(&x["w_uv"].t()?)?;
        Result::Ok([query, Tensor::cat(&[&key, &rotated.contiguous()?], 3)?, value])
    };
    case.compare_with_gradients(|x| {
        let [query, key, value] = expanded(x)?;
        attention(&query, &key, &value, &options)
    })?;
    case.compare_with_gradients(|x| {
        let absorbed = x["q_nope"].broadcast_matmul(&x["w_uk"])?;
        let query = Tensor::cat(&[&absorbed, &x["q_rope"]], 3)?;
        let latents = Tensor::cat(&[&x["c"], &x["k_rope"]], 2)?.unsqueeze(1)?;
        let value = latents.narrow(3, 0, x["c"].dim(D::Minus1)?)?;
        attention(&query, &latents, &value, &options)?.broadcast_matmul(&x["w_uv"].t()?)
    })?;
    let [query, key, _value] = expanded(&case.inputs())?;
    case.compare("weights", &weights(&query, &key, &options)?)
}

/// softmax(q (E k)ᵀ / √D) F v, by a layer.
pub(crate) fn check_linformer(case: &Case<'_>) -> Result<()> {
    let x = case.inputs();
    let (rank, _len) = x["E"].dims2()?;
    let mask = Mask::from_key_mask(case)?;
    let config = AttentionConfig::Linformer(linformer::Config { rank });
    let (query, key) = (&x["q"], x["E"].broadcast_matmul(&x["k"])?);
    case.compare("weights", &weights(query, &key, &Options::default())?)?;
    case.compare_with_gradients(|x| {
        let (key, value) = (x["E"].broadcast_matmul(&x["k"])?, x["F"].broadcast_matmul(&x["v"])?);
        attention(&x["q"], &key, &value, &Options::default())
    })?;
    layer::check_output(case, &config, &mask)
}

pub(crate) fn check_path(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_key_mask(case)?;
    let mut layer_mask = tealight_model::Mask::none();
    if let Some(padding) = mask.padding() {
        layer_mask = layer_mask.with_key_padding_mask(padding)?;
    }
    let operands = |x: &Inputs| {
        let mut beta = x["beta"].clone();
        if let Some(padding) = mask.padding() {
            let padding = padding.unsqueeze(1)?.broadcast_as(beta.shape())?;
            beta = padding.where_cond(&beta.zeros_like()?, &beta)?;
        }
        let [query, key, value, w] = ["q", "k", "v", "w"].map(|name| x[name].clone());
        Result::Ok(path::Operands { query, key, value, w, beta })
    };
    case.compare_with_gradients(|x| {
        let (batch, n_heads, len, head_dim) = x["v"].dims4()?;
        let heads = path::attend(&operands(x)?, &layer_mask, None)?;
        heads.reshape((batch, len, n_heads, head_dim))?.transpose(1, 2)
    })?;
    case.compare("weights", &path::weights(&operands(&case.inputs())?, &layer_mask)?)
}

/// `(batch, n_heads, len, head_dim)` → `(batch, len, n_heads, head_dim)`, and back.
fn swapped(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.contiguous()
}

pub(crate) fn check_bigbird(case: &Case<'_>) -> Result<()> {
    let of = case.description;
    let (mask, block) = (Mask::from_key_mask(case)?, of.block.expect("a size"));
    let pattern = case.tensor("pattern").to_vec2::<u8>()?;
    let n_blocks = pattern.len().div_ceil(block);
    let random = case.has("random_blocks").then(|| case.tensor("random_blocks").to_vec2::<u8>());
    let random = random.transpose()?;
    let lists = (0..n_blocks).map(|i| {
        if of.global_blocks.contains(&i) {
            return (0..n_blocks as u32).collect();
        }
        let near = (0..n_blocks).filter(|&j| i.abs_diff(j) <= of.around);
        let drawn = random.iter().flat_map(|random| random[i].iter().map(|&j| usize::from(j)));
        near.chain(of.global_blocks.iter().copied()).chain(drawn).map(|j| j as u32).collect()
    });
    let lists = BlockLists::new(block, lists.collect())?;
    for (i, row) in pattern.iter().enumerate() {
        for (j, &reads) in row.iter().enumerate() {
            assert_eq!(lists.contains(i, j), reads == 1, "{}: {i} and {j}", case.name);
        }
    }
    case.compare_with_gradients(|x| {
        let [query, key, value] = ["q", "k", "v"].map(|name| swapped(&x[name]));
        let operands = [&query?, &key?, &value?];
        swapped(&block_sparse_attention(operands, &lists, mask.padding(), None)?)
    })
}

pub(crate) fn check_longformer(case: &Case<'_>) -> Result<()> {
    let mask = Mask::from_key_mask(case)?;
    let window = case.description.window.expect("a window");
    let global = case.tensor("global_mask").to_vec2::<u8>()?;
    case.compare_with_gradients(|x| {
        // The record has other global positions in each example.
        let examples = global.iter().enumerate().map(|(example, flags)| {
            let global: Vec<_> = (0..flags.len()).filter(|&i| flags[i] == 1).collect();
            let of = |name: &str| swapped(&x[name].narrow(0, example, 1)?);
            let operands = longformer::Operands {
                near: [of("q")?, of("k")?, of("v")?],
                global: Some([of("q_global")?, of("k_global")?, of("v_global")?]),
            };
            let padding =
                mask.padding().map(|padding| padding.narrow(0, example, 1)).transpose()?;
            swapped(&longformer::attend(&operands, window, &global, padding.as_ref(), None)?)
        });
        Tensor::cat(&examples.collect::<Result<Vec<_>>>()?, 0)
    })
}

pub(crate) fn check_fnet(case: &Case<'_>) -> Result<()> {
    let (_batch, len, d_model) = case.inputs()["x"].dims3()?;
    let config = AttentionConfig::Fnet(fnet::Config {});
    let sizes = Sizes { d_model, n_heads: 1, head_dim: d_model, len };
    let layer = build(case, &config, sizes, Vec::new())?;
    case.compare_with_gradients(|x| {
        let mask = tealight_model::Mask::none();
        layer.forward(&AttentionInput::new(&x["x"], &mask, Mode::Eval))
    })
}

pub(crate) fn check_spatial_gating(case: &Case<'_>) -> Result<()> {
    case.compare_with_gradients(|x| {
        let mut w = x["weight"].clone();
        if case.description.causal {
            w = (&w * Tensor::tril2(w.dim(0)?, w.dtype(), w.device())?)?;
        }
        gmlp::spatial_gating(&x["u"], &x["v"], &w, &x["bias"])
    })
}

/// The layer of a kind with all of its parameters. Its output at padding is not specified; the record has zeros.
pub(crate) fn check_layer(case: &Case<'_>) -> Result<()> {
    let x = case.inputs();
    let of = case.description;
    let n_heads = of.n_heads.expect("a number of heads");
    let (_batch, len, d_model) = x["x"].dims3()?;
    let (config, head_dim, names): (_, _, &[(&str, &str)]) = match case.op() {
        "forgetting_layer" => {
            let config = AttentionConfig::Forgetting(forgetting::Config {
                pro: of.pro,
                ..Default::default()
            });
            (config, x["q_proj"].dim(0)? / n_heads, FORGETTING)
        }
        "differential_layer" => {
            let config = AttentionConfig::Differential(differential::Config::default());
            (config, x["v_proj"].dim(0)? / n_heads, DIFFERENTIAL)
        }
        _ => {
            let config = AttentionConfig::Mla(mla::Config {
                d_latent: of.d_c,
                d_query_latent: x.get("w_dq").map(|w| w.dim(0)).transpose()?,
                d_nope: of.d_nope,
                d_rope: of.d_rope,
                d_value: of.d_v,
                ..Default::default()
            });
            (config, of.d_rope.expect("a width"), LATENT)
        }
    };
    let layer = |x: &Inputs| {
        let mut parameters = Vec::new();
        for &(name, parameter) in names {
            let Some(tensor) = x.get(name) else { continue };
            // Norms of each head are (n_heads, head_dim) here; the heads of W^UK and W^UV are rows.
            let is_by_head = name.ends_with("_norm") && case.op() == "forgetting_layer";
            let tensor = match tensor.rank() {
                1 if is_by_head => tensor.reshape((n_heads, ()))?,
                3 => tensor.flatten_to(1)?,
                _ => tensor.clone(),
            };
            parameters.push((parameter, tensor));
        }
        build(case, &config, Sizes { d_model, n_heads, head_dim, len }, parameters)
    };
    let mut mask = tealight_model::Mask::none();
    let mut real = Tensor::ones((1, 1, 1), case.dtype, device())?;
    if case.has("mask") {
        let kept = case.tensor("mask");
        mask = mask.with_key_padding_mask(&kept.eq(0_u8)?)?;
        real = kept.to_dtype(case.dtype)?.unsqueeze(2)?;
    }
    case.compare_with_gradients(|x| {
        let input = AttentionInput::new(&x["x"], &mask, Mode::Eval);
        layer(x)?.forward(&input)?.broadcast_mul(&real)
    })
}

const FORGETTING: &[(&str, &str)] = &[
    ("q_proj", "query.weight"),
    ("k_proj", "key.weight"),
    ("v_proj", "value.weight"),
    ("f_proj", "forget.weight"),
    ("f_bias", "forget.bias"),
    ("k_shift", "key_shift.weight"),
    ("v_shift", "value_shift.weight"),
    ("q_norm", "query_norm.weight"),
    ("k_norm", "key_norm.weight"),
    ("o_norm", "output_norm.weight"),
    ("g_proj", "gate.weight"),
    ("o_proj", "output.weight"),
];

const DIFFERENTIAL: &[(&str, &str)] = &[
    ("q_proj", "query.weight"),
    ("k_proj", "key.weight"),
    ("v_proj", "value.weight"),
    ("lambda_q1", "lambda_q1"),
    ("lambda_k1", "lambda_k1"),
    ("lambda_q2", "lambda_q2"),
    ("lambda_k2", "lambda_k2"),
    ("norm", "norm.weight"),
    ("o_proj", "output.weight"),
];

const LATENT: &[(&str, &str)] = &[
    ("w_dkv", "latent.weight"),
    ("kv_norm", "latent_norm.weight"),
    ("w_kr", "rotated_key.weight"),
    ("w_uk", "key.weight"),
    ("w_uv", "value.weight"),
    ("w_dq", "query_latent.weight"),
    ("q_norm", "query_latent_norm.weight"),
    ("w_uq", "query.weight"),
    ("w_qr", "rotated_query.weight"),
    ("w_o", "output.weight"),
];

#[derive(Clone, Copy)]
struct Sizes {
    d_model: usize,
    n_heads: usize,
    head_dim: usize,
    len: usize,
}

/// A layer without biases at the place, with the positions and the reach of a case.
fn build(
    case: &Case<'_>,
    config: &AttentionConfig,
    sizes: Sizes,
    parameters: Vec<(&str, Tensor)>,
) -> Result<Box<dyn Attention>> {
    let Sizes { d_model, n_heads, head_dim, len } = sizes;
    let of = case.description;
    let parameters = parameters.into_iter().map(|(name, tensor)| (name.to_owned(), tensor));
    let vb = VarBuilder::from_tensors(parameters.collect(), case.dtype, device());
    let causal = of.causal || matches!(case.op(), "forgetting_layer" | "mla_layer");
    let position = match of.rotary_base {
        Some(base) if base > 0. => {
            let rotary = rotary::Config { base, ..rotary::Config::default() };
            let spec = PositionSpec {
                d_model,
                n_heads,
                head_dim,
                max_seq_len: len,
                causal,
                has_padding: false,
                grid: None,
            };
            PositionConfig::Rotary(rotary).build(&spec, &vb).map_err(Error::wrap)?.needs()
        }
        _ => AttentionNeeds::Nothing,
    };
    let init = Initializer::build(&InitConfig::default(), 1).map_err(Error::wrap)?;
    let index = of.layer.map_or(0, |layer| layer - 1);
    let spec = AttentionSpec {
        d_model,
        n_heads,
        head_dim: Some(head_dim),
        max_q_len: len,
        max_kv_len: len,
        reads: if causal { Reads::Past } else { Reads::Everything },
        dropout: 0.,
        bias: Bias::Without,
        position,
        packed: false,
        conv_size: 0,
        layer: LayerPlace { index, count: index + 1, is_first: true },
        init: &init,
        key: "model.attention",
    };
    config.build(&spec, &vb).map_err(Error::wrap)
}

pub(crate) fn check_log_linear(case: &Case<'_>) -> Result<()> {
    case.compare_with_gradients(|x| {
        let [query, key, value, log_decay, levels] =
            ["q", "k", "v", "log_alpha", "levels"].map(|name| x[name].clone());
        let operands = log_linear::Operands { query, key, value, log_decay, levels };
        log_linear::attend(&operands, &tealight_model::Mask::none())
    })
}
