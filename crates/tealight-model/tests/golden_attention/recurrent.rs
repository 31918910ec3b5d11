//! The gated delta rule, what each kind on it gives it, and the layers of these kinds.
//!
//! In the records positions come after heads, and 1 in `mask` is a token.

use candle_core::{DType, Result, Tensor};
use tealight_model::attention::state::State;
use tealight_model::attention::{
    AttentionConfig, deltanet, gated_deltanet, gla, kda, mamba2, rwkv7,
};
use tealight_model::{AttentionInput, LayerPlace, Mask, Mode, Reads};
use tealight_ops::Tokens;
use tealight_ops::gated_delta_rule::{Erase, Operands, gated_delta_rule};

use crate::layer::{self, Sizes};
use crate::record::{Case, Inputs};

/// The padding and the documents of a case.
struct Masks {
    padding: Option<Tensor>,
    segments: Option<Tensor>,
}

impl Masks {
    fn from_case(case: &Case<'_>) -> Result<Self> {
        let tensor = |name| case.has(name).then(|| case.tensor(name));
        let padding = tensor("mask").map(|mask| mask.eq(0_u8)).transpose()?;
        let segments = tensor("segments").map(|x| x.to_dtype(DType::U32)).transpose()?;
        Ok(Self { padding, segments })
    }

    fn tokens(&self) -> Tokens<'_> {
        Tokens { key_padding_mask: self.padding.as_ref(), segments: self.segments.as_ref() }
    }

    fn for_layer(&self) -> Result<Mask> {
        let mut mask = Mask::none();
        if let Some(padding) = &self.padding {
            mask = mask.with_key_padding_mask(padding)?;
        }
        match &self.segments {
            Some(segments) => mask.with_segments(segments),
            None => Ok(mask),
        }
    }

    /// `x (batch, len, ..)` with zeros at padding, as it is recorded.
    fn without_padding(&self, x: &Tensor) -> Result<Tensor> {
        let Some(padding) = &self.padding else { return Ok(x.clone()) };
        let mut shape = vec![1; x.rank()];
        shape[..2].copy_from_slice(padding.dims());
        padding.reshape(shape)?.broadcast_as(x.shape())?.where_cond(&x.zeros_like()?, x)
    }
}

/// The operands of the rule, with positions before heads.
#[derive(Default)]
struct Rule {
    /// Query, key and value.
    main: Option<[Tensor; 3]>,
    strength: Option<Tensor>,
    erases_key: bool,
    along: Option<Tensor>,
    /// With `along`: what is erased from, if that is not the key.
    erase_key: Option<Tensor>,
    log_decay: Option<Tensor>,
    /// Steps for each token; the last one is read.
    steps: usize,
}

/// `(batch, n_heads, len, ..)` ↔ `(batch, len, n_heads, ..)`
fn swapped(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.contiguous()
}

/// One tensor for each step of a token, `(batch, n_heads, len, ..)`, as `(batch, len·n, n_heads, ..)`.
fn in_steps(parts: &[Tensor]) -> Result<Tensor> {
    let parts = parts.iter().map(swapped).collect::<Result<Vec<_>>>()?;
    Tensor::stack(&parts, 2)?.flatten(1, 2)
}

/// `x (batch, n_heads, len)` times `y (batch, n_heads, len, width)`.
fn times(x: &Tensor, y: &Tensor) -> Result<Tensor> {
    x.unsqueeze(3)?.broadcast_mul(y)
}

impl Rule {
    /// What the kind of the `op` gives to the rule.
    fn new(op: &str, x: &Inputs) -> Result<Self> {
        let three = |names: [&str; 3]| -> Result<Option<[Tensor; 3]>> {
            let [query, key, value] = names.map(|name| swapped(&x[name]));
            Ok(Some([query?, key?, value?]))
        };
        let of = |name: &str| x.get(name).map(swapped).transpose();
        let plain = Self { steps: 1, ..Self::default() };
        let qkv = ["q", "k", "v"];
        Ok(match op {
            "gated_delta_rule" => Self {
                main: three(["q", "k", "u"])?,
                along: Some(swapped(&times(&x["beta"], &x["e"])?)?),
                log_decay: of("log_alpha")?,
                ..plain
            },
            "linear_sum" | "lightning" | "simple_gla" | "gla" => {
                Self { main: three(qkv)?, log_decay: of("log_alpha")?, ..plain }
            }
            "hgrn2" => {
                let key = minus_expm1(&x["log_f"].neg()?)?;
                let main = Some([swapped(&x["q"])?, swapped(&key)?, swapped(&x["i"])?]);
                Self { main, log_decay: of("log_f")?, ..plain }
            }
            "delta" | "gated_delta" | "kda" => Self {
                main: three(qkv)?,
                strength: of("beta")?,
                erases_key: true,
                log_decay: of("log_alpha")?,
                ..plain
            },
            "gdn2" => Self {
                main: Some([swapped(&x["q"])?, swapped(&x["k"])?, swapped(&(&x["w"] * &x["v"])?)?]),
                along: Some(swapped(&(&x["b"] * &x["k"])?)?),
                log_decay: of("log_alpha")?,
                ..plain
            },
            "ssd" => {
                let a = x["A"].reshape((1, (), 1))?;
                Self {
                    main: three(["C", "B", "x"])?,
                    strength: of("delta")?,
                    log_decay: Some(swapped(&x["delta"].broadcast_mul(&a)?)?),
                    ..plain
                }
            }
            "rwkv7" => {
                let kappa = &x["kappa"];
                Self {
                    main: three(["r", "k", "v"])?,
                    along: Some(swapped(&(kappa * x["log_w"].neg()?.exp()?)?)?),
                    erase_key: Some(swapped(&(kappa * &x["a"])?)?),
                    log_decay: of("log_w")?,
                    ..plain
                }
            }
            "delta_product" => {
                let n = x["k"].dim(3)?;
                let step = |name: &str, axis| {
                    let parts = (0..n).map(|i| x[name].narrow(axis, i, 1)?.squeeze(axis));
                    in_steps(&parts.collect::<Result<Vec<_>>>()?)
                };
                let log = &x["log_alpha"];
                let mut logs = vec![log.zeros_like()?; n];
                logs[0] = log.clone();
                Self {
                    main: Some([in_steps(&vec![x["q"].clone(); n])?, step("k", 3)?, step("v", 3)?]),
                    strength: Some(step("beta", 3)?),
                    erases_key: true,
                    log_decay: Some(in_steps(&logs)?),
                    steps: n,
                    ..plain
                }
            }
            op => panic!("no operands of `{op}`"),
        })
    }

    /// The outputs, with heads before positions, and the last state.
    fn apply(&self, state: Option<&Tensor>, masks: &Masks) -> Result<[Tensor; 2]> {
        let [query, key, value] = self.main.as_ref().expect("query, key and value");
        let repeated = |x: &Option<Tensor>| -> Result<Option<Tensor>> {
            let Some(x) = x else { return Ok(None) };
            let (batch, len) = x.dims2()?;
            let x = x.unsqueeze(2)?.broadcast_as((batch, len, self.steps))?;
            Ok(Some(x.reshape((batch, len * self.steps))?))
        };
        let masks =
            Masks { padding: repeated(&masks.padding)?, segments: repeated(&masks.segments)? };
        let operands = Operands {
            query,
            key,
            value,
            strength: self.strength.as_ref(),
            erase: match (&self.along, &self.erase_key) {
                (Some(along), Some(key)) => Erase::Between { along, key },
                (Some(along), None) => Erase::Along(along),
                _ if self.erases_key => Erase::Key,
                _ => Erase::Nothing,
            },
            log_decay: self.log_decay.as_ref(),
            state,
        };
        let [out, state] = gated_delta_rule(&operands, masks.tokens())?;
        let (batch, steps, n_heads, width) = out.dims4()?;
        let out = out.reshape((batch, steps / self.steps, self.steps, n_heads, width))?;
        Ok([swapped(&out.narrow(2, self.steps - 1, 1)?.squeeze(2)?)?, state])
    }
}

/// 1 − e^(−x), by its Taylor series where x is small and a difference would lose digits.
fn minus_expm1(x: &Tensor) -> Result<Tensor> {
    let mut series = x.affine(-1. / 24., 1. / 6.)?;
    for coefficient in [-0.5, 1., 0.] {
        series = ((series * x)? + coefficient)?;
    }
    let plain = x.neg()?.exp()?.affine(-1., 1.)?;
    x.lt(3e-3)?.where_cond(&series, &plain)
}

/// The rule by itself, or with what a kind gives it.
pub(crate) fn check_rule(case: &Case<'_>) -> Result<()> {
    let masks = Masks::from_case(case)?;
    let slope = case.has("slope").then(|| case.tensor("slope"));
    case.compare_results_with_gradients(|x| {
        let mut rule = Rule::new(case.op(), x)?;
        if let Some(slope) = &slope {
            let (batch, n_heads, len, _width) = x["q"].dims4()?;
            let slope = slope.neg()?.reshape((1, n_heads, 1))?;
            let slope = slope.broadcast_as((batch, n_heads, len))?;
            rule.log_decay = Some(swapped(&slope)?);
        }
        let [mut out, state] = rule.apply(x.get("initial_state"), &masks)?;
        if let Some(skip) = x.get("D") {
            let skip = skip.reshape((1, skip.elem_count(), 1, 1))?;
            out = (out + x["x"].broadcast_mul(&skip)?)?;
        }
        let out = swapped(&masks.without_padding(&swapped(&out)?)?)?;
        Ok(vec![("out".to_owned(), out), ("final_state".to_owned(), state)])
    })
}

/// A whole layer: its output, its last state and the gradients of its parameters.
pub(crate) fn check_layer(case: &Case<'_>) -> Result<()> {
    let masks = Masks::from_case(case)?;
    let mask = masks.for_layer()?;
    case.compare_results_with_gradients(|x| {
        let (config, sizes, parameters) = layer_of(case, x)?;
        let first = x.get("v_first");
        let place = LayerPlace { is_first: first.is_none(), ..LayerPlace::ONLY };
        let layer = layer::build_at(place, &config, case.dtype, Reads::Past, sizes, parameters)?;
        let mut past = State::default();
        if let Some(state) = x.get("initial_state") {
            past.insert("state", state.clone());
        }
        let input = AttentionInput { first, ..AttentionInput::new(&x["x"], &mask, Mode::Eval) };
        let out = layer.resume(&input, &mut past)?.expect("a layer with a state");
        let out = masks.without_padding(&out)?;
        let plain = masks.without_padding(&layer.forward(&input)?)?;
        if x.get("initial_state").is_none() {
            case.compare("out", &plain)?;
        }
        let state = |name: &str| past.get(name).expect("part of the state").clone();
        let mut results = vec![("out".to_owned(), out), ("final_state".to_owned(), state("state"))];
        for (name, recorded) in [("query", "q"), ("key", "k"), ("value", "v")] {
            if case.has(&format!("final_conv_{recorded}")) {
                results.push((format!("final_conv_{recorded}"), state(name)));
            }
        }
        if case.has("final_shift") {
            results.push(("final_shift".to_owned(), state("last").squeeze(1)?));
        }
        if case.has("final_conv") {
            let all = Tensor::cat(&[state("value"), state("key"), state("query")], 2)?;
            results.push(("final_conv".to_owned(), all));
        }
        Ok(results)
    })
}

type Parameters = Vec<(&'static str, Tensor)>;

/// The settings of a recorded layer, and its parameters by our names. Heads have a width of 1, so that the factors of
/// keys and values are their widths, except in Mamba-2.
fn layer_of(case: &Case<'_>, x: &Inputs) -> Result<(AttentionConfig, Sizes, Parameters)> {
    let (_batch, len, d_model) = x["x"].dims3()?;
    let about = case.description;
    let n_heads = about.n_value_heads.or(about.n_heads).expect("heads");
    let sizes = Sizes { d_model, n_heads, head_dim: 1, q_len: len, kv_len: len };
    let named = |names: &[(&'static str, &str)]| -> Parameters {
        names.iter().map(|&(name, recorded)| (name, x[recorded].clone())).collect()
    };
    let (expand_k, expand_v) = match about.d_key.zip(about.d_value) {
        Some((key, value)) => (key as f64, value as f64),
        None => (1., 1.),
    };
    let negative_eigenvalues = about.beta_scale == Some(2.);
    let rank = |name: &str| x[name].dim(0);
    Ok(match case.op() {
        "gated_deltanet_layer" => {
            let config = gated_deltanet::Config {
                expand_k,
                expand_v,
                n_key_heads: about.n_heads,
                negative_eigenvalues,
                ..Default::default()
            };
            let mut parameters = named(&DELTA);
            parameters.extend(named(&[
                ("decay.weight", "a_proj"),
                ("decay.a_log", "A_log"),
                ("decay.dt_bias", "dt_bias"),
                ("gate.weight", "g_proj"),
            ]));
            (AttentionConfig::GatedDeltaNet(config), sizes, parameters)
        }
        "deltanet_layer" => {
            let config =
                deltanet::Config { expand_k, expand_v, negative_eigenvalues, ..Default::default() };
            (AttentionConfig::DeltaNet(config), sizes, named(&DELTA))
        }
        "kda_layer" => {
            let config = kda::Config {
                expand_k,
                expand_v,
                negative_eigenvalues,
                rank: Some(rank("f_a_proj")?),
                lower_bound: about.lower_bound,
                ..Default::default()
            };
            let mut parameters = named(&DELTA);
            parameters.extend(named(&[
                ("decay.down.weight", "f_a_proj"),
                ("decay.up.weight", "f_b_proj"),
                ("decay.a_log", "A_log"),
                ("decay.dt_bias", "dt_bias"),
                ("gate.down.weight", "g_a_proj"),
                ("gate.up.weight", "g_b_proj"),
                ("gate.up.bias", "g_bias"),
            ]));
            (AttentionConfig::Kda(config), sizes, parameters)
        }
        "gla_layer" => {
            let (keys, _) = x["q_proj"].dims2()?;
            let (values, _) = x["v_proj"].dims2()?;
            let config = gla::Config {
                expand_k: (keys / n_heads) as f64,
                expand_v: (values / n_heads) as f64,
                rank: rank("gk_a_proj")?,
                ..Default::default()
            };
            let parameters = named(&[
                ("query.weight", "q_proj"),
                ("key.weight", "k_proj"),
                ("value.weight", "v_proj"),
                ("gate.weight", "g_proj"),
                ("decay.down.weight", "gk_a_proj"),
                ("decay.up.weight", "gk_b_proj"),
                ("decay.up.bias", "gk_bias"),
                ("norm.weight", "o_norm"),
                ("output.weight", "o_proj"),
            ]);
            (AttentionConfig::Gla(config), sizes, parameters)
        }
        "mamba2_layer" => mamba2_layer(case, x, sizes)?,
        "rwkv7_layer" => rwkv7_layer(x, sizes)?,
        op => panic!("no layer of `{op}`"),
    })
}

/// Its matrices of low rank are recorded as (in, rank) and (rank, out).
fn rwkv7_layer(x: &Inputs, sizes: Sizes) -> Result<(AttentionConfig, Sizes, Parameters)> {
    let rank = |name: &str| x.get(name).map(|down| down.dim(1)).transpose();
    let config = rwkv7::Config {
        decay_rank: rank("w1")?,
        rate_rank: rank("a1")?,
        value_rank: rank("v1")?,
        gate_rank: rank("g1")?,
        ..Default::default()
    };
    let as_they_are = [
        ("receptance.mix", "x_r"),
        ("receptance.weight", "receptance"),
        ("key.mix", "x_k"),
        ("key.weight", "key"),
        ("value.mix", "x_v"),
        ("value.weight", "value"),
        ("decay.mix", "x_w"),
        ("decay.base", "w0"),
        ("rate.mix", "x_a"),
        ("rate.base", "a0"),
        ("gate.mix", "x_g"),
        ("share.base", "v0"),
        ("erased", "k_k"),
        ("written", "k_a"),
        ("bonus", "r_k"),
        ("norm.weight", "ln_x"),
        ("norm.bias", "ln_x_bias"),
        ("output.weight", "output"),
    ];
    let transposed = [
        ("decay.down.weight", "w1"),
        ("decay.up.weight", "w2"),
        ("rate.down.weight", "a1"),
        ("rate.up.weight", "a2"),
        ("gate.down.weight", "g1"),
        ("gate.up.weight", "g2"),
        ("share.down.weight", "v1"),
        ("share.up.weight", "v2"),
    ];
    let mut parameters = Vec::new();
    for (name, recorded) in as_they_are {
        parameters.extend(x.get(recorded).map(|tensor| (name, tensor.clone())));
    }
    for (name, recorded) in transposed {
        if let Some(tensor) = x.get(recorded) {
            parameters.push((name, tensor.t()?.contiguous()?));
        }
    }
    let (_batch, _len, d_model) = x["x"].dims3()?;
    let sizes = Sizes { head_dim: d_model / sizes.n_heads, ..sizes };
    Ok((AttentionConfig::Rwkv7(config), sizes, parameters))
}

/// What the layers of the delta rule have in common.
const DELTA: [(&str, &str); 9] = [
    ("query.weight", "q_proj"),
    ("query.convolution.weight", "q_conv"),
    ("key.weight", "k_proj"),
    ("key.convolution.weight", "k_conv"),
    ("value.weight", "v_proj"),
    ("value.convolution.weight", "v_conv"),
    ("strength.weight", "b_proj"),
    ("norm.weight", "o_norm"),
    ("output.weight", "o_proj"),
];

/// The rows of its one matrix are z, x, B, C and Δ.
fn mamba2_layer(
    case: &Case<'_>,
    x: &Inputs,
    sizes: Sizes,
) -> Result<(AttentionConfig, Sizes, Parameters)> {
    let about = case.description;
    let number = |x: Option<usize>| x.expect("a size of the layer");
    let (n_heads, head_dim) = (sizes.n_heads, number(about.head_dim));
    let (d_state, n_groups) = (number(about.d_state), number(about.n_groups));
    let (channels, of_groups) = (n_heads * head_dim, n_groups * d_state);
    let config = mamba2::Config { expand: 2, d_state, n_groups, ..Default::default() };
    let sizes = Sizes { n_heads: n_heads / 2, head_dim, ..sizes };
    let mut parameters = Vec::new();
    let mut split = |recorded: &str, parts: &[(&'static str, usize)]| -> Result<()> {
        let mut first = 0;
        for &(name, rows) in parts {
            parameters.push((name, x[recorded].narrow(0, first, rows)?.contiguous()?));
            first += rows;
        }
        Ok(())
    };
    split(
        "in_proj",
        &[
            ("gate.weight", channels),
            ("value.weight", channels),
            ("key.weight", of_groups),
            ("query.weight", of_groups),
            ("step.weight", n_heads),
        ],
    )?;
    split(
        "conv",
        &[
            ("value.convolution.weight", channels),
            ("key.convolution.weight", of_groups),
            ("query.convolution.weight", of_groups),
        ],
    )?;
    split(
        "conv_bias",
        &[
            ("value.convolution.bias", channels),
            ("key.convolution.bias", of_groups),
            ("query.convolution.bias", of_groups),
        ],
    )?;
    for (name, recorded) in [
        ("step.dt_bias", "dt_bias"),
        ("a_log", "A_log"),
        ("skip", "D"),
        ("norm.weight", "norm"),
        ("output.weight", "out_proj"),
    ] {
        parameters.push((name, x[recorded].clone()));
    }
    Ok((AttentionConfig::Mamba2(config), sizes, parameters))
}
