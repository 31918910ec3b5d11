//! Mamba-2 (Dao and Gu 2024): `Mamba2ForCausalLM`.
//!
//! Blocks have no feed-forward network. The maps of z, x, B, C and Δ are one matrix in a file, and the convolutions of x, B
//! and C are one. `transformers` sets padding to zero instead of skipping it, so texts that are padded in the middle, which
//! no tokenizer makes, differ.

use serde_json::{Map, Value, json};

use super::class::{self, Class, Model};
use super::ids::SpecialIds;
use super::keys::Keys;
use super::rules::Rules;
use super::table::{Alias, Pair, Role};
use super::{HfResult, requirements};
use crate::attention::recurrent::gated_output::EPSILON;
use crate::attention::{AttentionConfig, mamba2};
use crate::config::{MAX_SIZE, ModelConfig, NormPlacement};
use crate::layers::feed_forward::FeedForwardConfig;
use crate::layers::norm::{NormConfig, RmsNormConfig};
use crate::models::causal_lm::CausalLmSpec;
use crate::models::spec::ModelSpec;
use crate::params::init::{InitConfig, Normal};
use crate::position::PositionConfig;

pub(super) const CLASS: Class = Class {
    architecture: "Mamba2ForCausalLM",
    has: class::is_decoder,
    base: "backbone",
    roots: &["embeddings.", "layers.", "norm_f."],
    unused: &[],
    read,
    write,
    pairs,
    arranged: None,
    aliases: |config| {
        let of = "backbone.embeddings.weight";
        let alias = Alias { name: "lm_head.weight", of, role: Role::Tied };
        config.tied_output.then_some(alias).into_iter().collect()
    },
    token_types: None,
    heads: &[],
};

/// The longest sequence of a model read from a file, which names none: its state has the same size after any.
const MAX_SEQ_LEN: usize = MAX_SIZE;

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    let why = "maps of the mixer have no biases here";
    keys.require("use_bias", false, why)?;
    keys.require("use_conv_bias", true, "its convolutions have biases here")?;
    keys.require("hidden_act", "silu", "gate and convolutions have this activation")?;
    keys.require("layer_norm_epsilon", EPSILON, "it is that of the norm in the mixer")?;
    let any = json!([0.0, { "__float__": "Infinity" }]);
    keys.require("time_step_limit", any, "steps have no limits here")?;
    // How weights begin, and how the state is computed.
    for key in ["time_step_rank", "time_step_min", "time_step_max", "time_step_floor"] {
        keys.ignore(key);
    }
    for key in ["chunk_size", "residual_in_fp32", "rescale_prenorm_residual", "rms_norm"] {
        keys.ignore(key);
    }
    let (d_model, expand) = (keys.size("hidden_size", 4096)?, keys.size("expand", 2)?);
    let (heads, head_dim) = (keys.size("num_heads", 128)?, keys.size("head_dim", 64)?);
    if expand == 0 || !heads.is_multiple_of(expand) || heads / expand * head_dim != d_model {
        let why = format!(
            "`num_heads` · `head_dim` = {heads} · {head_dim} must be `expand` · `hidden_size` = {expand} · {d_model}, and \
             `num_heads` a multiple of `expand`"
        );
        return Err(keys.unsupported("num_heads", &heads.to_string(), &why));
    }
    let std = keys.number("initializer_range", 0.1)?;
    let attention = mamba2::Config {
        expand,
        d_state: keys.size("state_size", 128)?,
        n_groups: keys.size("n_groups", 8)?,
        conv_size: keys.size("conv_kernel", 4)?,
    };
    let config = ModelConfig {
        d_model,
        n_layers: keys.n_layers("num_hidden_layers", 64)?,
        n_heads: heads / expand,
        max_seq_len: Some(MAX_SEQ_LEN),
        causal: true,
        bias: false,
        dropout: 0.,
        norm_placement: NormPlacement::Pre,
        tied_output: keys.flag("tie_word_embeddings", false)?,
        position: PositionConfig::None,
        attention: AttentionConfig::Mamba2(attention),
        norm: NormConfig::RmsNorm(RmsNormConfig { epsilon: EPSILON }),
        feed_forward: FeedForwardConfig::None,
        init: InitConfig::Normal(Normal { std, scale_residual: false }),
        ..ModelConfig::default()
    };
    let vocab_size = keys.size("vocab_size", 32_768)?;
    let spec = CausalLmSpec { vocab_size, seq_len: MAX_SEQ_LEN, packed: false };
    let ids = SpecialIds::read(keys, [Some(1), Some(0), Some(2)])?;
    Ok((config, ModelSpec::CausalLm(spec), ids))
}

fn write((config, spec, ids): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    rules.require_on("model.causal", config.causal, "causal attention");
    requirements::check_equal_layers(config, rules);
    requirements::check_pre_norm_blocks(config, rules);
    rules.require_off("model.bias", config.bias, "no biases in linear maps");
    rules.require_off("model.scale_output", config.scale_output, "an unscaled output");
    requirements::check_one_width(config, rules);
    for (key, kind, required) in [
        ("model.position.kind", config.position.kind(), PositionConfig::None.kind()),
        ("model.feed_forward.kind", config.feed_forward.kind(), FeedForwardConfig::None.kind()),
    ] {
        if kind != required {
            rules.wrong_kind(key, kind, required);
        }
    }
    let epsilon = requirements::rms_norm_epsilon(config, rules);
    let has = format!("that of the norm in the mixer, {EPSILON}");
    rules.check(epsilon == EPSILON, "model.norm.epsilon", &epsilon.to_string(), &has);
    let mixer = mixer(config);
    if !matches!(config.attention, AttentionConfig::Mamba2(_)) {
        rules.wrong_kind("model.attention.kind", config.attention.kind(), "mamba2");
    }
    let has = "short convolutions";
    rules.check(mixer.conv_size > 0, "model.attention.conv_size", "0", has);
    if config.dropout > 0. {
        rules.note("`model.dropout` is not written: the class has none");
    }
    let keys = json!({
        "vocab_size": spec.vocab_size(),
        "hidden_size": config.d_model,
        "num_hidden_layers": config.n_layers,
        "num_heads": mixer.expand.saturating_mul(config.n_heads),
        "head_dim": config.head_dim(),
        "expand": mixer.expand,
        "state_size": mixer.d_state,
        "n_groups": mixer.n_groups,
        "conv_kernel": mixer.conv_size,
        "hidden_act": "silu",
        "use_bias": false,
        "use_conv_bias": true,
        "layer_norm_epsilon": EPSILON,
        "initializer_range": requirements::initial_std(config),
        "tie_word_embeddings": config.tied_output,
    });
    let mut map = keys.as_object().cloned().unwrap_or_default();
    map.extend(ids.keys());
    map
}

/// The settings of the mixer; the defaults if the attention is another, which is a fault.
fn mixer(config: &ModelConfig) -> mamba2::Config {
    match &config.attention {
        AttentionConfig::Mamba2(mixer) => mixer.clone(),
        _ => mamba2::Config::default(),
    }
}

fn pairs(config: &ModelConfig) -> Vec<Pair> {
    let mixer = mixer(config);
    let heads = mixer.expand.saturating_mul(config.n_heads);
    let channels = heads.saturating_mul(config.head_dim());
    let of_groups = mixer.n_groups.saturating_mul(mixer.d_state);
    let layer = "backbone.layers.*";
    let same = |ours: &str, theirs: &str| {
        Pair::same(format!("layer.*.attention.{ours}"), format!("{layer}.mixer.{theirs}"))
    };
    let joined = |ours: &[&str], theirs: &str, widths: &[usize]| {
        let ours: Vec<_> = ours.iter().map(|name| format!("layer.*.attention.{name}")).collect();
        let ours: Vec<_> = ours.iter().map(String::as_str).collect();
        Pair::joined(&ours, format!("{layer}.mixer.{theirs}")).of_rows(widths)
    };
    let convolutions = ["value.convolution", "key.convolution", "query.convolution"];
    let widths = [channels, channels, of_groups, of_groups, heads];
    vec![
        Pair::same("embedding.token", "backbone.embeddings"),
        Pair::same("layer.*.attention_residual.norm", format!("{layer}.norm")),
        same("step.dt_bias", "dt_bias"),
        same("a_log", "A_log"),
        same("skip", "D"),
        joined(&["gate", "value", "key", "query", "step"], "in_proj", &widths),
        joined(&convolutions, "conv1d", &widths[1..4]).of_filters(),
        same("norm", "norm"),
        same("output", "out_proj"),
        Pair::same("final_norm", "backbone.norm_f"),
        Pair::same("output", "lm_head"),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{assert_refused, changed, reasons};
    use super::super::{Family, describe, express_as};
    use super::*;
    use crate::position::learned;

    fn config() -> Value {
        json!({
            "model_type": "mamba2", "hidden_size": 30, "num_heads": 6, "head_dim": 10, "n_groups": 3,
            "num_hidden_layers": 2,
        })
    }

    #[test]
    fn settings_with_other_results_are_refused_by_key() {
        let changes = [
            ("use_bias", json!(true)),
            ("use_conv_bias", json!(false)),
            ("hidden_act", json!("gelu")),
            ("layer_norm_epsilon", json!(1e-6)),
            ("time_step_limit", json!([0.001, 0.1])),
            ("num_heads", json!(5)),
        ];
        assert_refused(&config(), &changes);
    }

    #[test]
    fn what_is_read_is_written_again() -> HfResult<()> {
        for change in [
            ("state_size", json!(7)),
            ("conv_kernel", json!(3)),
            ("tie_word_embeddings", json!(true)),
            ("time_step_limit", json!([0.0, { "__float__": "Infinity" }])),
        ] {
            let described = describe(&changed(&config(), std::slice::from_ref(&change)))?;
            assert_eq!(described.notes, Vec::<String>::new());
            let (config, spec) = (&described.config, &described.spec);
            let written = express_as(Family::Mamba2, config, spec, &described.ids, None)?;
            let again = describe(&Value::Object(written.config).to_string())?;
            assert_eq!(again.config, described.config, "{change:?}");
        }
        Ok(())
    }

    #[test]
    fn all_faults_are_listed_by_their_toml_keys() -> HfResult<()> {
        let described = describe(&config().to_string())?;
        let attention = mamba2::Config { conv_size: 0, ..mixer(&described.config) };
        let config = ModelConfig {
            bias: true,
            position: PositionConfig::Learned(learned::Config::default()),
            norm: NormConfig::RmsNorm(RmsNormConfig { epsilon: 1e-6 }),
            attention: AttentionConfig::Mamba2(attention),
            ..described.config.clone()
        };
        let expected = [
            "model.bias",
            "model.position.kind",
            "model.norm.epsilon",
            "model.attention.conv_size",
        ];
        assert_eq!(reasons(Family::Mamba2, &config, &described), expected);
        Ok(())
    }
}
