//! OLMo Hybrid (Ai2 2026): `OlmoHybridForCausalLM`, gated DeltaNet in most layers and softmax attention in the others.
//!
//! The layers of gated DeltaNet are pre-norm blocks. Those of softmax attention normalise the outputs of their
//! sub-layers, and queries and keys over all heads together. The released models have no positions, which a
//! `config.json` says by a rotary base of `null`: without `rope_parameters`, `transformers` rotates by the base 10,000.
//!
//! Files come in three forms. The released ones, which are written here, have three convolutions in a layer.
//! `transformers` 5.24 has one, which it cuts into three anywhere when it saves, and it gives norms the names of the
//! authors' program. It sets padding to zero instead of skipping it, so texts that are padded in the middle, which no
//! tokenizer makes, differ.

use std::collections::BTreeMap;

use candle_core::Tensor;
use serde_json::{Map, Value, json};

use super::class::{self, Class, Model};
use super::ids::SpecialIds;
use super::keys::Keys;
use super::layers::{self, Layer};
use super::rules::Rules;
use super::table::Pair;
use super::{HfError, HfResult, decoder, requirements};
use crate::attention::qk_norm::NormOver;
use crate::attention::recurrent::gated_output::Gate;
use crate::attention::score::Score;
use crate::attention::{AttentionConfig, gated_deltanet, softmax};
use crate::choice::names::Named as _;
use crate::config::{LayerConfig, ModelConfig, NormPlacement};
use crate::layers::feed_forward::{Activation, FeedForwardConfig, GluConfig};
use crate::layers::norm::{NormConfig, RmsNormConfig};
use crate::models::causal_lm::CausalLmSpec;
use crate::models::spec::ModelSpec;
use crate::params::init::{InitConfig, Normal};
use crate::position::PositionConfig;
use crate::position::rotary::{self, Layout};

pub(super) const CLASS: Class = Class {
    architecture: "OlmoHybridForCausalLM",
    has: class::is_decoder,
    base: "model",
    roots: &["embed_tokens.", "layers.", "norm."],
    unused: &["rotary_emb.inv_freq"],
    read,
    write,
    pairs,
    arranged: Some(arranged),
    aliases: decoder::aliases,
    token_types: None,
    heads: &[],
};

/// The names of the kinds of layers.
const TYPES: [&str; 2] = ["linear_attention", "full_attention"];
/// Names that files have for the norms of a layer, and their names in memory.
const NORMS: [[&str; 2]; 2] = [
    [".attention_layer_norm.", ".input_layernorm."],
    [".feedforward_layer_norm.", ".post_attention_layernorm."],
];

/// The convolutions of queries, keys and values in a file, and all of them in memory.
const PARTS: [&str; 3] = ["q_conv1d", "k_conv1d", "v_conv1d"];
const WHOLE: &str = "conv1d";

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    keys.require("attention_bias", false, "`model.bias` concerns all linear maps")?;
    keys.require("hidden_act", "silu", "the convolutions of gated DeltaNet have this activation")?;
    // How weights begin.
    for name in ["a_log_min", "a_log_max", "dt_min", "dt_max", "dt_init_floor"] {
        keys.ignore(&format!("linear_{name}"));
    }
    let d_model = keys.size("hidden_size", 3840)?;
    let n_heads = keys.size("num_attention_heads", 30)?;
    let own = keys.optional_size("head_dim")?;
    let head_dim = own.or(d_model.checked_div(n_heads)).unwrap_or_default();
    let n_layers = keys.n_layers("num_hidden_layers", 32)?;
    let epsilon = keys.number("rms_norm_eps", 1e-6)?;
    let position = read_position(keys)?;
    let mixer = read_mixer(keys, [d_model, n_heads, head_dim])?;
    let linear = LayerConfig {
        attention: Some(AttentionConfig::GatedDeltaNet(mixer)),
        position: (position != PositionConfig::None).then_some(PositionConfig::None),
        norm_placement: Some(NormPlacement::Pre),
    };
    let heads = softmax::Config {
        n_kv_heads: keys.optional_size("num_key_value_heads")?.filter(|n| *n != n_heads),
        qk_norm: true,
        qk_norm_epsilon: epsilon,
        qk_norm_over: NormOver::AllHeads,
        ..Default::default()
    };
    let feed_forward = GluConfig {
        activation: Activation::Silu,
        d_ff: Some(keys.size("intermediate_size", 11_008)?),
    };
    let max_seq_len = keys.size("max_position_embeddings", 65_536)?;
    let std = keys.number("initializer_range", 0.02)?;
    let config = ModelConfig {
        d_model,
        n_layers,
        n_heads,
        head_dim: Some(head_dim).filter(|dim| dim.checked_mul(n_heads) != Some(d_model)),
        max_seq_len: Some(max_seq_len),
        causal: true,
        dropout: keys.number("attention_dropout", 0.)?,
        norm_placement: NormPlacement::Output,
        bias: false,
        tied_output: keys.flag("tie_word_embeddings", false)?,
        position,
        attention: AttentionConfig::Softmax(heads),
        layers: read_layers(keys, n_layers, &linear)?,
        norm: NormConfig::RmsNorm(RmsNormConfig { epsilon }),
        feed_forward: FeedForwardConfig::Glu(feed_forward),
        init: InitConfig::Normal(Normal { std, scale_residual: false }),
        ..ModelConfig::default()
    };
    let vocab_size = keys.size("vocab_size", 100_352)?;
    let spec = CausalLmSpec { vocab_size, seq_len: max_seq_len, packed: false };
    let ids = SpecialIds::read(keys, [Some(100_277), None, Some(100_257)])?;
    Ok((config, ModelSpec::CausalLm(spec), ids))
}

/// The settings of the layers of gated DeltaNet.
fn read_mixer(
    keys: &mut Keys,
    [d_model, n_heads, head_dim]: [usize; 3],
) -> HfResult<gated_deltanet::Config> {
    let n_value_heads = keys.size("linear_num_value_heads", n_heads)?;
    if n_value_heads != n_heads {
        let why = format!("gated DeltaNet has `num_attention_heads` = {n_heads} heads of values");
        let value = n_value_heads.to_string();
        return Err(keys.unsupported("linear_num_value_heads", &value, &why));
    }
    let n_key_heads = keys.size("linear_num_key_heads", n_heads)?;
    let key_dim = (3 * d_model).checked_div(4 * n_key_heads).unwrap_or_default();
    let key_dim = keys.size("linear_key_head_dim", key_dim)?;
    let value_dim = keys.size("linear_value_head_dim", 2 * key_dim)?;
    Ok(gated_deltanet::Config {
        expand_k: key_dim as f64 / head_dim as f64,
        expand_v: value_dim as f64 / head_dim as f64,
        conv_size: keys.size("linear_conv_kernel_dim", 4)?,
        n_key_heads: Some(n_key_heads).filter(|n| *n != n_heads),
        n_householder: 1,
        negative_eigenvalues: keys.flag("linear_allow_neg_eigval", true)?,
        output_gate: Gate::Silu,
    })
}

/// The entries of `[[model.layers]]`: by default, every fourth layer or the last is not `linear`.
fn read_layers(
    keys: &mut Keys,
    n_layers: usize,
    linear: &LayerConfig,
) -> HfResult<Vec<LayerConfig>> {
    let by_default = |i: usize| usize::from(i % 4 == 3 || (n_layers < 4 && i + 1 == n_layers));
    let listed = layers::read_indices(keys, n_layers, &TYPES)?;
    let kinds = listed.unwrap_or_else(|| (0..n_layers).map(by_default).collect());
    let entry = |&kind: &usize| if kind == 0 { linear.clone() } else { LayerConfig::default() };
    Ok(layers::period(&kinds).iter().map(entry).collect())
}

/// The positions of the layers of softmax attention.
fn read_position(keys: &mut Keys) -> HfResult<PositionConfig> {
    let base = read_base(keys, Some(rotary::Config::default().base))?;
    let old = keys.table("rope_scaling", |table| read_rotary(table, base))?;
    let new = keys.table("rope_parameters", |table| read_rotary(table, base))?;
    let unscaled = || match base {
        Some(base) => PositionConfig::Rotary(rotary::Config {
            base,
            layout: Layout::Half,
            ..Default::default()
        }),
        None => PositionConfig::None,
    };
    Ok(old.or(new).unwrap_or_else(unscaled))
}

/// A table of rotary positions, in which an absent base is `base`.
fn read_rotary(table: &mut Keys, base: Option<f64>) -> HfResult<PositionConfig> {
    let Some(base) = read_base(table, base)? else {
        table.ignore("rope_type");
        return Ok(PositionConfig::None);
    };
    decoder::rotary_table(table, base).map(PositionConfig::Rotary)
}

/// The rotary base: `None` where it is `null`, `default` where it is absent.
fn read_base(keys: &mut Keys, default: Option<f64>) -> HfResult<Option<f64>> {
    let default = if keys.is_null("rope_theta") { None } else { default };
    Ok(keys.optional_number("rope_theta")?.or(default))
}

fn write((config, spec, ids): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    rules.require_on("model.causal", config.causal, "causal attention");
    requirements::check_first_norm(config, rules);
    requirements::check_plain_stream(config, rules);
    rules.require_off("model.bias", config.bias, "no biases");
    rules.require_off("model.scale_output", config.scale_output, "an unscaled output");
    let epsilon = requirements::rms_norm_epsilon(config, rules);
    let (activation, d_ff) = requirements::glu(config, rules);
    if activation != Activation::Silu {
        rules.wrong_kind("model.feed_forward.activation", activation.name(), "silu");
    }
    let Shared { mixer, heads, position } = Shared::check(config, epsilon, rules);
    let kind = |is_linear: bool| TYPES[usize::from(!is_linear)];
    let keys = json!({
        "vocab_size": spec.vocab_size(),
        "hidden_size": config.d_model,
        "intermediate_size": d_ff,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": heads.n_kv_heads.unwrap_or(config.n_heads),
        "hidden_act": "silu",
        "max_position_embeddings": config.max_seq_len.or(spec.seq_len()).unwrap_or_default(),
        "initializer_range": requirements::initial_std(config),
        "rms_norm_eps": epsilon,
        "tie_word_embeddings": config.tied_output,
        "rope_parameters": match position {
            PositionConfig::Rotary(rotary) => decoder::write_rotary_table(&rotary),
            _ => json!({ "rope_type": "default", "rope_theta": null }),
        },
        "attention_bias": false,
        "attention_dropout": config.dropout,
        "layer_types": kinds(config).into_iter().map(kind).collect::<Vec<_>>(),
        "linear_num_key_heads": mixer.n_key_heads.unwrap_or(config.n_heads),
        "linear_num_value_heads": config.n_heads,
        "linear_key_head_dim": features(config, mixer.expand_k),
        "linear_value_head_dim": features(config, mixer.expand_v),
        "linear_conv_kernel_dim": mixer.conv_size,
        "linear_allow_neg_eigval": mixer.negative_eigenvalues,
    });
    let mut map = keys.as_object().cloned().unwrap_or_default();
    if let Some(head_dim) = config.head_dim {
        map.insert("head_dim".to_owned(), head_dim.into());
    }
    map.extend(ids.keys());
    map
}

/// What all layers of a kind share.
struct Shared {
    mixer: gated_deltanet::Config,
    heads: softmax::Config,
    position: PositionConfig,
}

impl Shared {
    /// Requires layers of both kinds, those of a kind alike.
    fn check(config: &ModelConfig, epsilon: f64, rules: &mut Rules) -> Self {
        let (mut mixer, mut heads) = (None, None);
        for Layer { attention: (table, attention), position, norm_placement, .. } in
            layers::layers(config)
        {
            let placement = match attention {
                AttentionConfig::GatedDeltaNet(own) => {
                    check_mixer(&table, own, rules);
                    check_alike(*mixer.get_or_insert(own) == own, &table, rules);
                    NormPlacement::Pre
                }
                AttentionConfig::Softmax(own) => {
                    check_heads(&table, own, epsilon, rules);
                    let (first, first_position) = *heads.get_or_insert((own, position.1));
                    check_alike(first == own, &table, rules);
                    check_alike(first_position == position.1, &position.0, rules);
                    NormPlacement::Output
                }
                other => {
                    rules.wrong_kind(&format!("{table}.kind"), other.kind(), "gated_deltanet");
                    continue;
                }
            };
            let (key, own) = norm_placement;
            requirements::check_norm_placement_in(&key, own, placement, rules);
        }
        for (is_there, kind) in [(mixer.is_some(), "gated_deltanet"), (heads.is_some(), "softmax")]
        {
            let value = format!("\"{}\" in all layers", config.attention_kinds());
            let has = format!("\"{kind}\" in some of them");
            rules.check(is_there, "model.attention.kind", &value, &has);
        }
        let (heads, position) = heads.unzip();
        let position = position.cloned().unwrap_or(PositionConfig::None);
        if !matches!(position, PositionConfig::Rotary(_) | PositionConfig::None) {
            rules.wrong_kind("model.position.kind", position.kind(), "rotary");
        }
        let (mixer, heads) = (mixer.cloned(), heads.cloned());
        Self { mixer: mixer.unwrap_or_default(), heads: heads.unwrap_or_default(), position }
    }
}

/// Records a fault of the TOML's `table` unless it `is_alike` that of the first layer of its kind.
fn check_alike(is_alike: bool, table: &str, rules: &mut Rules) {
    rules.check(is_alike, table, "another", "that of the first layer of its kind");
}

/// Requires gated DeltaNet with short convolutions, one key of a token, and a gate.
fn check_mixer(table: &str, mixer: &gated_deltanet::Config, rules: &mut Rules) {
    let key = |name: &str| format!("{table}.{name}");
    rules.check(mixer.conv_size > 0, &key("conv_size"), "0", "short convolutions");
    let n = mixer.n_householder;
    rules.check(n == 1, &key("n_householder"), &n.to_string(), "1");
    if mixer.output_gate != Gate::Silu {
        rules.wrong_kind(&key("output_gate"), mixer.output_gate.name(), Gate::Silu.name());
    }
}

/// Requires scaled dot products of queries and keys that are normalised over all heads.
fn check_heads(table: &str, heads: &softmax::Config, epsilon: f64, rules: &mut Rules) {
    let key = |name: &str| format!("{table}.{name}");
    if heads.score != Score::ScaledDot {
        rules.wrong_kind(&key("score"), heads.score.name(), Score::ScaledDot.name());
    }
    requirements::check_plain_heads(table, heads.sink, heads.output_gate, rules);
    rules.require_on(&key("qk_norm"), heads.qk_norm, "normalised queries and keys");
    if heads.qk_norm_over != NormOver::AllHeads {
        let over = heads.qk_norm_over;
        rules.wrong_kind(&key("qk_norm_over"), over.name(), NormOver::AllHeads.name());
    }
    let own = heads.qk_norm_epsilon;
    let has = format!("that of `model.norm`, {epsilon}");
    rules.check(own == epsilon, &key("qk_norm_epsilon"), &own.to_string(), &has);
}

/// Whether each layer is one of gated DeltaNet.
fn kinds(config: &ModelConfig) -> Vec<bool> {
    let is_linear = |i| matches!(config.attention_of(i), AttentionConfig::GatedDeltaNet(_));
    (0..config.n_layers).map(is_linear).collect()
}

fn pairs(config: &ModelConfig) -> Vec<Pair> {
    let linear = kinds(config);
    let full: Vec<bool> = linear.iter().map(|is_linear| !is_linear).collect();
    let same = |ours: &str, theirs: &str| {
        Pair::same(format!("layer.*.{ours}"), format!("model.layers.*.{theirs}"))
    };
    let norm = |ours: &str, theirs: &str| {
        same(&format!("{ours}_residual.norm"), &format!("{theirs}_layernorm"))
    };
    let mut pairs = vec![
        Pair::same("embedding.token", "model.embed_tokens"),
        norm("attention", "input").in_layers(&linear),
        norm("feed_forward", "post_attention").in_layers(&linear),
        norm("attention", "post_attention").in_layers(&full),
        norm("feed_forward", "post_feedforward").in_layers(&full),
        same("feed_forward.gate", "mlp.gate_proj"),
        same("feed_forward.up", "mlp.up_proj"),
        same("feed_forward.down", "mlp.down_proj"),
        Pair::same("final_norm", "model.norm"),
        Pair::same("output", "lm_head"),
    ];
    let first = full.iter().position(|&is_full| is_full).unwrap_or_default();
    pairs.extend(softmax_pairs(config, first).map(|pair| pair.in_layers(&full)));
    pairs.extend(mixer_pairs(config).into_iter().map(|pair| pair.in_layers(&linear)));
    pairs
}

/// The parameters of softmax attention; `first` is the first layer that has it.
fn softmax_pairs(config: &ModelConfig, first: usize) -> impl Iterator<Item = Pair> {
    let layout = match config.position_of(first) {
        PositionConfig::Rotary(rotary) => rotary.layout,
        _ => Layout::Half,
    };
    let head_dim = config.head_dim();
    let names = [
        ("query", "q_proj"),
        ("key", "k_proj"),
        ("query_norm", "q_norm"),
        ("key_norm", "k_norm"),
        ("value", "v_proj"),
        ("output", "o_proj"),
    ];
    names.into_iter().enumerate().map(move |(i, (ours, theirs))| {
        let theirs = format!("model.layers.*.self_attn.{theirs}");
        let pair = Pair::same(format!("layer.*.attention.{ours}"), theirs);
        // Queries and keys rotate in the layout `half` there.
        if i < 4 && layout == Layout::Interleaved { pair.in_halves(head_dim) } else { pair }
    })
}

/// The parameters of gated DeltaNet.
fn mixer_pairs(config: &ModelConfig) -> Vec<Pair> {
    let theirs = |name: &str| format!("model.layers.*.linear_attn.{name}");
    let ours = |name: &str| format!("layer.*.attention.{name}");
    let names = [
        ("query", "q_proj"),
        ("key", "k_proj"),
        ("value", "v_proj"),
        ("decay.a_log", "A_log"),
        ("decay.dt_bias", "dt_bias"),
        ("decay", "a_proj"),
        ("strength", "b_proj"),
        ("gate", "g_proj"),
        ("norm", "o_norm"),
        ("output", "o_proj"),
    ];
    let mut pairs: Vec<_> = names.map(|name| Pair::same(ours(name.0), theirs(name.1))).into();
    let convolutions = ["query", "key", "value"].map(|name| ours(&format!("{name}.convolution")));
    let parts = PARTS.iter().zip(&convolutions);
    pairs.extend(parts.map(|(part, ours)| Pair::same(ours, theirs(part)).of_filters()));
    let mixer = config.attentions().find_map(|(_, attention)| match attention {
        AttentionConfig::GatedDeltaNet(mixer) => Some(mixer.clone()),
        _ => None,
    });
    let mixer = mixer.unwrap_or_default();
    let width = |n_heads: usize, factor| n_heads.saturating_mul(features(config, factor));
    let keys = width(mixer.n_key_heads.unwrap_or(config.n_heads), mixer.expand_k);
    let rows = [keys, keys, width(config.n_heads, mixer.expand_v)];
    let whole = Pair::joined(&convolutions.each_ref().map(String::as_str), theirs(WHOLE));
    pairs.push(whole.of_rows(&rows).of_filters());
    pairs
}

/// The features of a head's key or value, `factor` times the width of a head.
fn features(config: &ModelConfig, factor: f64) -> usize {
    (factor * config.head_dim() as f64).round() as usize
}

/// The tensors of a file as they are in memory: norms by their names there, and the convolutions of a layer as one, as
/// files cut them at different rows.
fn arranged(tensors: BTreeMap<String, Tensor>) -> HfResult<BTreeMap<String, Tensor>> {
    let mut arranged = BTreeMap::new();
    for (name, tensor) in tensors {
        let name = NORMS.iter().fold(name, |name, [from, to]| name.replace(from, to));
        if arranged.contains_key(&name) {
            let message = format!("the file contains tensor `{name}` twice, under two names");
            return Err(HfError::Tensor(message));
        }
        arranged.insert(name, tensor);
    }
    let end = |name: &str| format!(".linear_attn.{name}.weight");
    let layers = arranged.keys().filter_map(|name| name.strip_suffix(&end(PARTS[0])));
    let layers: Vec<_> = layers.map(str::to_owned).collect();
    for layer in layers {
        let names = PARTS.map(|part| format!("{layer}{}", end(part)));
        let parts: Vec<_> = names.iter().filter_map(|name| arranged.get(name)).collect();
        let form = |part: &Tensor| (part.dtype(), part.dims().get(1..).map(<[usize]>::to_vec));
        let are_alike = parts.iter().all(|part| part.rank() > 0 && form(part) == form(parts[0]));
        // Parts that do not fit, and one that is missing, are errors later, by their names.
        if parts.len() == PARTS.len() && are_alike {
            let whole = Tensor::cat(&parts, 0)?;
            for name in &names {
                arranged.remove(name);
            }
            arranged.insert(format!("{layer}{}", end(WHOLE)), whole);
        }
    }
    Ok(arranged)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::super::test_support::{assert_refused, changed, reasons};
    use super::super::{Family, describe, express_as};
    use super::*;
    use crate::position::learned;

    fn config() -> Value {
        json!({
            "model_type": "olmo_hybrid", "hidden_size": 24, "num_attention_heads": 4, "num_hidden_layers": 4,
            "linear_key_head_dim": 5, "linear_value_head_dim": 7, "vocab_size": 11,
        })
    }

    #[test]
    fn settings_with_other_results_are_refused_by_key() {
        let changes = [
            ("attention_bias", json!(true)),
            ("hidden_act", json!("gelu")),
            ("linear_num_value_heads", json!(8)),
        ];
        assert_refused(&config(), &changes);
        let text = changed(&config(), &[("layer_types", json!(vec!["sliding_attention"; 4]))]);
        assert!(describe(&text).expect_err("refused").to_string().contains("`layer_types` "));
    }

    #[test]
    fn what_is_read_is_written_again() -> HfResult<()> {
        let theta = |theta: Value| json!({ "rope_type": "default", "rope_theta": theta });
        for (change, kind) in [
            (("rope_parameters", theta(json!(500.))), "rotary"),
            (("rope_parameters", theta(Value::Null)), "none"),
            (("rope_theta", Value::Null), "none"),
            (("rope_parameters", Value::Null), "rotary"),
            (("linear_allow_neg_eigval", json!(false)), "rotary"),
            (("linear_num_key_heads", json!(2)), "rotary"),
            (("num_key_value_heads", json!(2)), "rotary"),
            (("head_dim", json!(10)), "rotary"),
            (("layer_types", json!([TYPES[0], TYPES[1], TYPES[1], TYPES[0]])), "rotary"),
        ] {
            let described = describe(&changed(&config(), std::slice::from_ref(&change)))?;
            assert_eq!(described.notes, Vec::<String>::new());
            let config = &described.config;
            assert_eq!(config.position.kind(), kind, "{change:?}");
            let written =
                express_as(Family::OlmoHybrid, config, &described.spec, &described.ids, None)?;
            let again = describe(&Value::Object(written.config).to_string())?;
            assert_eq!(again.config, described.config, "{change:?}");
        }
        Ok(())
    }

    #[test]
    fn all_faults_are_listed_by_their_toml_keys() -> HfResult<()> {
        let described = describe(&config().to_string())?;
        let mut config = ModelConfig {
            bias: true,
            position: PositionConfig::Learned(learned::Config::default()),
            attention: AttentionConfig::Softmax(softmax::Config::default()),
            norm_placement: NormPlacement::Pre,
            ..described.config.clone()
        };
        let other = gated_deltanet::Config { n_householder: 2, ..Default::default() };
        config.layers[1].attention = Some(AttentionConfig::GatedDeltaNet(other));
        config.layers[2].attention = AttentionConfig::default_of("kda");
        let expected = [
            "model.bias",
            "model.layers[1].attention.n_householder",
            "model.layers[1].attention",
            "model.layers[2].attention.kind",
            "model.attention.qk_norm",
            "model.attention.qk_norm_over",
            "model.norm_placement",
            "model.position.kind",
        ];
        assert_eq!(reasons(Family::OlmoHybrid, &config, &described), expected);
        let same = ModelConfig { layers: Vec::new(), ..described.config.clone() };
        assert_eq!(reasons(Family::OlmoHybrid, &same, &described), ["model.attention.kind"]);
        Ok(())
    }

    /// The three forms of files: released, in memory, and as `save_pretrained` of 5.24 cuts the rows of the convolutions.
    #[test]
    fn convolutions_may_be_one_or_cut_anywhere() -> HfResult<()> {
        let described = describe(&config().to_string())?;
        let rows = [20, 20, 28];
        let whole = Tensor::arange(0f32, 68., &Device::Cpu)?.reshape((68, 1, 1))?;
        let cut = |rows: [usize; 3]| -> HfResult<BTreeMap<String, Tensor>> {
            let name = |part| format!("model.layers.2.linear_attn.{part}.weight");
            let starts = [0, rows[0], rows[0] + rows[1]];
            let parts = PARTS.iter().zip(starts.into_iter().zip(rows));
            parts.map(|(part, (at, n))| Ok((name(part), whole.narrow(0, at, n)?))).collect()
        };
        let name = |part| format!("model.layers.2.linear_attn.{part}.weight");
        let mut one = BTreeMap::from([(name(&WHOLE), whole.clone())]);
        let norm = Tensor::zeros(24, DType::F32, &Device::Cpu)?;
        one.insert("model.layers.3.feedforward_layer_norm.weight".to_owned(), norm);
        let expected = described.rename(cut(rows)?)?;
        assert_eq!(expected.tensors().len(), 3);
        for (tensor, n) in expected.tensors().values().zip([20, 20, 28]) {
            assert_eq!(tensor.dims(), [n, 1]);
        }
        for tensors in [one, cut([23, 23, 22])?] {
            let weights = described.rename(tensors)?;
            assert_eq!(weights.notes(), Vec::<String>::new());
            for (name, tensor) in expected.tensors() {
                let own = weights.tensors()[name].to_vec2::<f32>()?;
                assert_eq!(own, tensor.to_vec2::<f32>()?, "{name}");
            }
        }
        let written = described.express()?.rename(expected.tensors())?;
        assert!(written.keys().eq(cut(rows)?.keys()), "{:?}", written.keys());
        Ok(())
    }
}
