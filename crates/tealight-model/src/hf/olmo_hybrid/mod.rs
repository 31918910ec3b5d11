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

mod tensors;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value, json};

use super::class::{self, Class, Model};
use super::ids::SpecialIds;
use super::keys::Keys;
use super::layers::{self, Layer};
use super::rules::Rules;
use super::{HfResult, decoder, requirements};
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
    pairs: tensors::pairs,
    arranged: Some(tensors::arranged),
    aliases: decoder::aliases,
    token_types: None,
    heads: &[],
};

/// The names of the kinds of layers.
const TYPES: [&str; 2] = ["linear_attention", "full_attention"];

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

/// The features of a head's key or value, `factor` times the width of a head.
fn features(config: &ModelConfig, factor: f64) -> usize {
    (factor * config.head_dim() as f64).round() as usize
}
