//! GPT-2 (Radford et al. 2019): `GPT2LMHeadModel`.
//!
//! Linear maps are stored as `(in, out)`, and queries, keys and values are one map. Files of the backbone
//! only, such as the published ones, omit the prefix `transformer.` and contain the causal mask as a
//! tensor.

use serde_json::{Map, Value};

use super::class::{self, Class, Model};
use super::ids::SpecialIds;
use super::keys::{self, Keys};
use super::rules::Rules;
use super::table::{Alias, Pair, Role};
use super::{HfResult, requirements};
use crate::attention::score::Score;
use crate::attention::{AttentionConfig, softmax};
use crate::config::{ModelConfig, NormPlacement};
use crate::layers::feed_forward::{FeedForwardConfig, MlpConfig};
use crate::layers::norm::{LayerNormConfig, NormConfig};
use crate::models::causal_lm::CausalLmSpec;
use crate::models::spec::ModelSpec;
use crate::params::init::{InitConfig, Normal};
use crate::position::{PositionConfig, learned};

const SCALED: Score = Score::ScaledDot;

pub(super) const CLASS: Class = Class {
    architecture: "GPT2LMHeadModel",
    has: class::is_decoder,
    base: "transformer",
    roots: &["wte.", "wpe.", "h.", "ln_f."],
    unused: &["attn.bias", "attn.masked_bias"],
    read,
    write,
    pairs,
    arranged: None,
    aliases: |config| {
        let alias =
            Alias { name: "lm_head.weight", of: "transformer.wte.weight", role: Role::Tied };
        config.tied_output.then_some(alias).into_iter().collect()
    },
    token_types: None,
    heads: &[],
};

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    keys.require("add_cross_attention", false, "cross-attention is not supported for this class")?;
    let why = "scores are scaled alike in all layers";
    keys.require("scale_attn_by_inverse_layer_idx", false, why)?;
    // The first is the precision of the scores in f16; the others belong to other heads.
    for key in ["reorder_and_upcast_attn", "n_ctx", "is_decoder", "cross_attention_hidden_size"] {
        keys.ignore(key);
    }
    for key in ["activation", "first_dropout", "proj_to_labels", "type", "use_proj"] {
        keys.ignore(&format!("summary_{key}"));
    }
    let n_positions = keys.size("n_positions", 1024)?;
    let std = keys.number("initializer_range", 0.02)?;
    let activation = keys.activation("activation_function", "gelu_new")?;
    let epsilon = keys.number("layer_norm_epsilon", 1e-5)?;
    let score = if keys.flag("scale_attn_weights", true)? { SCALED } else { Score::Dot };
    let attention = softmax::Config { score, ..softmax::Config::default() };
    let config = ModelConfig {
        d_model: keys.size("n_embd", 768)?,
        n_layers: keys.n_layers("n_layer", 12)?,
        n_heads: keys.size("n_head", 12)?,
        max_seq_len: Some(n_positions),
        causal: true,
        dropout: keys.dropout(&["resid_pdrop", "embd_pdrop", "attn_pdrop"])?,
        norm_placement: NormPlacement::Pre,
        tied_output: keys.flag("tie_word_embeddings", true)?,
        position: PositionConfig::Learned(learned::Config { std, ..learned::Config::default() }),
        attention: AttentionConfig::Softmax(attention),
        norm: NormConfig::LayerNorm(LayerNormConfig { epsilon, bias: true }),
        feed_forward: FeedForwardConfig::Mlp(MlpConfig {
            activation,
            d_ff: keys.optional_size("n_inner")?,
        }),
        init: InitConfig::Normal(Normal { std, scale_residual: true }),
        ..ModelConfig::default()
    };
    let vocab_size = keys.size("vocab_size", 50_257)?;
    let spec = CausalLmSpec { vocab_size, seq_len: n_positions, packed: false };
    let ids = SpecialIds::read(keys, [None, Some(50_256), Some(50_256)])?;
    Ok((config, ModelSpec::CausalLm(spec), ids))
}

fn write((config, spec, ids): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    rules.require_on("model.causal", config.causal, "causal attention");
    requirements::check_equal_layers(config, rules);
    requirements::check_pre_norm_blocks(config, rules);
    rules.require_on("model.bias", config.bias, "biases in all linear maps");
    requirements::check_positions_from(0, config, rules);
    rules.require_off("model.scale_output", config.scale_output, "an unscaled output");
    requirements::check_one_width(config, rules);
    let score = requirements::softmax_score("model.attention", &config.attention, config, rules);
    let is_product = score.is_none_or(|score| score == SCALED || score == Score::Dot);
    let has = "\"scaled_dot\" or \"dot\"";
    rules.check(is_product, "model.attention.score", "another score", has);
    let (activation, _) = requirements::mlp(config, rules);
    let d_ff = match &config.feed_forward {
        FeedForwardConfig::Mlp(mlp) => mlp.d_ff,
        _ => None,
    };
    let std = requirements::initial_std(config);
    let epsilon = requirements::layer_norm_epsilon(config, rules);
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("vocab_size", spec.vocab_size().into());
    put("n_embd", config.d_model.into());
    put("n_layer", config.n_layers.into());
    put("n_head", config.n_heads.into());
    put("n_inner", d_ff.into());
    put("n_positions", config.max_seq_len.or(spec.seq_len()).unwrap_or_default().into());
    put("activation_function", keys::activation_name(activation).into());
    for key in ["resid_pdrop", "embd_pdrop", "attn_pdrop"] {
        put(key, config.dropout.into());
    }
    put("layer_norm_epsilon", epsilon.into());
    put("initializer_range", std.into());
    put("scale_attn_weights", (score == Some(SCALED)).into());
    put("tie_word_embeddings", config.tied_output.into());
    map.extend(ids.keys());
    map
}

fn pairs(_: &ModelConfig) -> Vec<Pair> {
    let layer = "transformer.h.*";
    let heads = ["query", "key", "value"].map(|name| format!("layer.*.attention.{name}"));
    vec![
        Pair::same("embedding.token", "transformer.wte"),
        Pair::same("position", "transformer.wpe"),
        Pair::same("layer.*.attention_residual.norm", format!("{layer}.ln_1")),
        Pair::transposed(&heads.each_ref().map(String::as_str), format!("{layer}.attn.c_attn")),
        Pair::transposed(&["layer.*.attention.output"], format!("{layer}.attn.c_proj")),
        Pair::same("layer.*.feed_forward_residual.norm", format!("{layer}.ln_2")),
        Pair::transposed(&["layer.*.feed_forward.up"], format!("{layer}.mlp.c_fc")),
        Pair::transposed(&["layer.*.feed_forward.down"], format!("{layer}.mlp.c_proj")),
        Pair::same("final_norm", "transformer.ln_f"),
        Pair::same("output", "lm_head"),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_support::{assert_refused, changed, reasons};
    use super::super::{Family, describe, express_as};
    use super::*;

    fn config() -> Value {
        json!({ "model_type": "gpt2", "n_embd": 30, "n_head": 5, "n_layer": 2 })
    }

    #[test]
    fn settings_with_other_results_are_refused_by_key() {
        let changes = [
            ("add_cross_attention", json!(true)),
            ("scale_attn_by_inverse_layer_idx", json!(true)),
            ("activation_function", json!("mish")),
            ("n_inner", json!("wide")),
        ];
        assert_refused(&config(), &changes);
    }

    #[test]
    fn scores_may_be_unscaled_and_the_inner_width_left_open() -> HfResult<()> {
        for change in [
            ("scale_attn_weights", json!(false)),
            ("n_inner", json!(null)),
            ("n_inner", json!(7)),
            ("tie_word_embeddings", json!(false)),
        ] {
            let described = describe(&changed(&config(), std::slice::from_ref(&change)))?;
            assert_eq!(described.notes, Vec::<String>::new());
            let written =
                express_as(Family::Gpt2, &described.config, &described.spec, &described.ids, None)?;
            assert_eq!(written.config[change.0], change.1);
            let again = describe(&Value::Object(written.config).to_string())?;
            assert_eq!(again.config, described.config, "{change:?}");
        }
        Ok(())
    }

    #[test]
    fn all_faults_are_listed_by_their_toml_keys() -> HfResult<()> {
        let described = describe(&config().to_string())?;
        let config = ModelConfig {
            bias: false,
            head_dim: Some(4),
            position: PositionConfig::None,
            norm_placement: NormPlacement::Post,
            ..described.config.clone()
        };
        let expected =
            ["model.norm_placement", "model.bias", "model.position.kind", "model.head_dim"];
        assert_eq!(reasons(Family::Gpt2, &config, &described), expected);
        Ok(())
    }
}
