//! T5 (Raffel et al. 2020, <https://arxiv.org/abs/1910.10683>) and T5 1.1: `T5ForConditionalGeneration`.
//!
//! Scores are not divided by √head_dim, norms are RMS norms, no map has a bias, and the first block of each
//! side stores the relative position biases for all blocks of that side.
//!
//! Two keys determine the output layer. Up to version 4 of `transformers`, `tie_word_embeddings` = true
//! means T5 (the token table as the output, with states divided by √d_model), and false means T5 1.1 (a
//! separate matrix, unscaled states). Version 5 writes true for both and distinguishes them by
//! `scale_decoder_outputs`. So a model is read as T5 1.1 if either key is false, and must then contain a
//! `lm_head`. Version 4 cannot represent a tied output of unscaled states, so it is not written.
//!
//! The class also applies dropout after the final norm, which ours does not.

use crate::models::seq2seq::Seq2SeqSpec;
use crate::models::spec::ModelSpec;
use serde_json::{Map, Value};

use super::class::{Class, Model};
use super::ids::SpecialIds;
use super::keys::{self, Keys};
use super::rules::Rules;
use super::table::{Alias, Pair, Role};
use super::{HfError, HfResult, requirements};
use crate::attention::score::Score;
use crate::attention::{AttentionConfig, softmax};
use crate::config::{ModelConfig, NormPlacement};
use crate::layers::feed_forward::{Activation, FeedForwardConfig, GluConfig, MlpConfig};
use crate::layers::norm::{NormConfig, RmsNormConfig};
use crate::position::{PositionConfig, relative};

/// The sequence length of the published models (§2.4). Relative positions have no maximal length.
const SEQ_LEN: usize = 512;
const TABLE: &str = "SelfAttention.relative_attention_bias";

pub(super) const CLASS: Class = Class {
    architecture: "T5ForConditionalGeneration",
    has: |spec| matches!(spec, ModelSpec::Seq2Seq { .. }),
    base: "",
    roots: &[],
    unused: &["EncDecAttention.relative_attention_bias"],
    read,
    write,
    pairs,
    arranged: None,
    aliases: |config| {
        let tied = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"];
        let n = if config.tied_output { 3 } else { 2 };
        let alias = |&copy| Alias { name: copy, of: "shared.weight", role: Role::Tied };
        tied[..n].iter().map(alias).collect()
    },
    token_types: None,
    heads: &[],
};

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    keys.require("is_encoder_decoder", true, "this class is an encoder-decoder")?;
    keys.require("is_decoder", false, "this class is an encoder-decoder")?;
    for key in ["initializer_factor", "bos_token_id"] {
        keys.ignore(key);
    }
    let d_model = keys.size("d_model", 512)?;
    let n_heads = keys.size("num_heads", 8)?;
    let head_dim = keys.size("d_kv", 64)?;
    let n_encoder_layers = keys.n_layers("num_layers", 6)?;
    let n_layers = keys.optional_n_layers("num_decoder_layers")?.unwrap_or(n_encoder_layers);
    let tied_output = read_output(keys)?;
    let feed_forward = read_feed_forward(keys)?;
    let softmax = softmax::Config { score: Score::Dot, ..softmax::Config::default() };
    let attention = AttentionConfig::Softmax(softmax);
    let position = relative::Config {
        n_buckets: keys.size("relative_attention_num_buckets", 32)?,
        max_distance: keys.size("relative_attention_max_distance", 128)?,
    };
    let config = ModelConfig {
        d_model,
        n_layers,
        n_encoder_layers: (n_encoder_layers != n_layers).then_some(n_encoder_layers),
        n_heads,
        head_dim: (n_heads.checked_mul(head_dim) != Some(d_model)).then_some(head_dim),
        dropout: keys.dropout(&["dropout_rate"])?,
        norm_placement: NormPlacement::Pre,
        bias: false,
        tied_output,
        scale_output: tied_output,
        position: PositionConfig::Relative(position),
        cross_attention: Some(attention.clone()),
        attention,
        norm: NormConfig::RmsNorm(RmsNormConfig {
            epsilon: keys.number("layer_norm_epsilon", 1e-6)?,
        }),
        feed_forward,
        ..ModelConfig::default()
    };
    let ids = SpecialIds::read(keys, [Some(0), None, Some(1)])?;
    let vocab_size = keys.size("vocab_size", 32_128)?;
    let len = keys.optional_size("n_positions")?.unwrap_or(SEQ_LEN);
    let begin_id = keys.id("decoder_start_token_id", ids.pad)?;
    if let Some(id) = begin_id.filter(|id| *id as usize >= vocab_size) {
        let message =
            format!("`decoder_start_token_id` = {id} must be below `vocab_size` = {vocab_size}");
        return Err(HfError::Config(message));
    }
    let spec = Seq2SeqSpec { vocab_size, source_len: len, target_len: len };
    Ok((config, ModelSpec::Seq2Seq { spec, begin_id }, ids))
}

/// Whether the output is tied to the token table, see the module documentation.
fn read_output(keys: &mut Keys) -> HfResult<bool> {
    let is_tied = keys.flag("tie_word_embeddings", true)?;
    let is_scaled = keys.flag("scale_decoder_outputs", is_tied)?;
    if is_scaled && !is_tied {
        let message = "`scale_decoder_outputs` = true is not supported with `tie_word_embeddings` = \
                       false: states are divided by √d_model only for a tied output";
        return Err(HfError::Config(message.to_owned()));
    }
    Ok(is_scaled)
}

fn read_feed_forward(keys: &mut Keys) -> HfResult<FeedForwardConfig> {
    let key = "feed_forward_proj";
    let word = keys.word(key, "relu")?;
    let (is_gated, name) =
        word.strip_prefix("gated-").map_or((false, word.as_str()), |name| (true, name));
    let name = if is_gated && name == "gelu" { "gelu_new" } else { name };
    keys.require("dense_act_fn", name, "`feed_forward_proj` names another activation")?;
    keys.require("is_gated_act", is_gated, "`feed_forward_proj` names another network")?;
    let Some(activation) = keys::activation(name) else {
        let message = format!("`{key}` = \"{word}\" is not a supported activation");
        return Err(HfError::Config(message));
    };
    let d_ff = Some(keys.size("d_ff", 2048)?);
    Ok(if is_gated {
        FeedForwardConfig::Glu(GluConfig { activation, d_ff })
    } else {
        FeedForwardConfig::Mlp(MlpConfig { activation, d_ff })
    })
}

fn write((config, spec, ids): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    requirements::check_equal_layers(config, rules);
    requirements::check_pre_norm_blocks(config, rules);
    rules.require_off("model.bias", config.bias, "linear maps without biases");
    let own = config.encoder_attention.is_none();
    rules.check(own, "model.encoder_attention", "set", "the same attention in encoder and decoder");
    check_dot("model.attention", Some(&config.attention), config, rules);
    check_dot("model.cross_attention", config.cross_attention.as_ref(), config, rules);
    let (output, scaled) = (config.tied_output, config.scale_output);
    let has = "states divided by √d_model if and only if the output is tied";
    rules.check(output == scaled, "model.scale_output", &scaled.to_string(), has);
    let relative = relative_position(config, rules);
    let epsilon = requirements::rms_norm_epsilon(config, rules);
    let feed_forward = feed_forward(config, rules);
    let d_ff = config.feed_forward.d_ff(config.d_model).unwrap_or_default();
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("vocab_size", spec.vocab_size().into());
    put("d_model", config.d_model.into());
    put("d_kv", config.head_dim().into());
    put("d_ff", d_ff.into());
    put("num_layers", config.n_encoder_layers.unwrap_or(config.n_layers).into());
    put("num_decoder_layers", config.n_layers.into());
    put("num_heads", config.n_heads.into());
    put("relative_attention_num_buckets", relative.n_buckets.into());
    put("relative_attention_max_distance", relative.max_distance.into());
    put("dropout_rate", config.dropout.into());
    put("layer_norm_epsilon", epsilon.into());
    put("feed_forward_proj", feed_forward.into());
    put("is_encoder_decoder", true.into());
    let seq_len = config.max_seq_len.or(spec.seq_len()).unwrap_or_default();
    if seq_len != SEQ_LEN {
        put("n_positions", seq_len.into());
    }
    put("tie_word_embeddings", config.tied_output.into());
    put("scale_decoder_outputs", config.scale_output.into());
    let begin_id = match spec {
        ModelSpec::Seq2Seq { begin_id, .. } => *begin_id,
        _ => None,
    };
    put("decoder_start_token_id", begin_id.or(ids.pad).into());
    put("pad_token_id", ids.pad.into());
    put("eos_token_id", ids.eos.into());
    map
}

fn check_dot(
    table: &str,
    attention: Option<&AttentionConfig>,
    config: &ModelConfig,
    rules: &mut Rules,
) {
    let default = AttentionConfig::default();
    let score = requirements::softmax_score(table, attention.unwrap_or(&default), config, rules);
    let dot = score.is_none_or(|score| score == Score::Dot);
    let key = format!("{table}.score");
    rules.check(dot, &key, "another score", "\"dot\", scores that are not divided by √head_dim");
}

fn relative_position(config: &ModelConfig, rules: &mut Rules) -> relative::Config {
    if let PositionConfig::Relative(relative) = &config.position {
        return relative.clone();
    }
    rules.wrong_kind("model.position.kind", config.position.kind(), "relative");
    relative::Config::default()
}

fn feed_forward(config: &ModelConfig, rules: &mut Rules) -> String {
    if let FeedForwardConfig::Mlp(MlpConfig { activation, .. }) = config.feed_forward {
        return keys::activation_name(activation).to_owned();
    }
    let FeedForwardConfig::Glu(GluConfig { activation, .. }) = config.feed_forward else {
        let kind = format!("\"{}\"", config.feed_forward.kind());
        rules.check(false, "model.feed_forward.kind", &kind, "\"mlp\" or \"glu\"");
        return String::new();
    };
    // "gated-gelu" means the tanh approximation.
    let has = "\"gelu_tanh\" for GEGLU";
    let key = "model.feed_forward.activation";
    rules.check(activation != Activation::Gelu, key, "\"gelu\"", has);
    match activation {
        Activation::GeluTanh => "gated-gelu".to_owned(),
        other => format!("gated-{}", keys::activation_name(other)),
    }
}

fn pairs(config: &ModelConfig) -> Vec<Pair> {
    let mut pairs = vec![Pair::same("embedding.token", "shared"), Pair::same("output", "lm_head")];
    pairs.extend(side("encoder", 1, config));
    pairs.extend(side("decoder", 2, config));
    let (ours, theirs) = ("decoder.layer.*.cross_attention", "decoder.block.*.layer.1");
    pairs.extend(maps(ours, &format!("{theirs}.EncDecAttention")));
    pairs.push(Pair::same(format!("{ours}_residual.norm"), format!("{theirs}.layer_norm")));
    pairs
}

/// The names of one side; `at` is the index of the feed-forward network in its blocks.
fn side(side: &str, at: usize, config: &ModelConfig) -> Vec<Pair> {
    let (ours, theirs) = (format!("{side}.layer.*"), format!("{side}.block.*.layer"));
    let dense = format!("{theirs}.{at}.DenseReluDense");
    let is_gated = matches!(config.feed_forward, FeedForwardConfig::Glu(_));
    let widen: &[_] = if is_gated { &[("gate", "wi_0"), ("up", "wi_1")] } else { &[("up", "wi")] };
    let mut pairs = maps(&format!("{ours}.attention"), &format!("{theirs}.0.SelfAttention"));
    pairs.extend(widen.iter().chain(&[("down", "wo")]).map(|(name, there)| {
        Pair::same(format!("{ours}.feed_forward.{name}"), format!("{dense}.{there}"))
    }));
    pairs.extend([
        Pair::same(format!("{side}.position"), format!("{side}.block.0.layer.0.{TABLE}")),
        Pair::same(format!("{ours}.attention_residual.norm"), format!("{theirs}.0.layer_norm")),
        Pair::same(
            format!("{ours}.feed_forward_residual.norm"),
            format!("{theirs}.{at}.layer_norm"),
        ),
        Pair::same(format!("{side}.final_norm"), format!("{side}.final_layer_norm")),
    ]);
    pairs
}

/// The names of the four maps of an attention.
fn maps(ours: &str, theirs: &str) -> Vec<Pair> {
    let names = [("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")];
    let pair = |(name, there)| Pair::same(format!("{ours}.{name}"), format!("{theirs}.{there}"));
    names.map(pair).into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::test_support::{assert_refused, changed, reasons};
    use super::super::{Family, describe, express_as};
    use super::*;

    fn config() -> Value {
        json!({ "model_type": "t5", "d_model": 30, "num_heads": 3, "d_kv": 10, "num_layers": 2 })
    }

    fn text(changes: &[(&str, Value)]) -> String {
        changed(&config(), changes)
    }

    #[test]
    fn settings_with_other_results_are_refused_by_key() {
        let changes = [
            ("is_encoder_decoder", json!(false)),
            ("is_decoder", json!(true)),
            ("feed_forward_proj", json!("gated-mish")),
            ("dense_act_fn", json!("gelu")),
            ("is_gated_act", json!(true)),
        ];
        assert_refused(&config(), &changes);
        let both = [("tie_word_embeddings", json!(false)), ("scale_decoder_outputs", json!(true))];
        let error = describe(&text(&both)).expect_err("refused").to_string();
        assert!(error.contains("`scale_decoder_outputs` = true is not supported"), "{error}");
    }

    /// The values that version 4 writes, and those of version 5, where `tie_word_embeddings` is always true.
    #[test]
    fn either_of_two_keys_unties_the_output() -> HfResult<()> {
        let [tied, scaled] = ["tie_word_embeddings", "scale_decoder_outputs"];
        for (changes, is_tied) in [
            (vec![], true),
            (vec![(tied, json!(true))], true),
            (vec![(tied, json!(false))], false),
            (vec![(tied, json!(true)), (scaled, json!(true))], true),
            (vec![(tied, json!(true)), (scaled, json!(false))], false),
        ] {
            let described = describe(&text(&changes))?;
            let ModelConfig { tied_output, scale_output, .. } = described.config;
            assert_eq!((tied_output, scale_output), (is_tied, is_tied), "{changes:?}");
            let written =
                express_as(Family::T5, &described.config, &described.spec, &described.ids, None)?;
            assert_eq!(written.config[tied], json!(is_tied));
            assert_eq!(written.config[scaled], json!(is_tied));
        }
        Ok(())
    }

    #[test]
    fn t5_settings_survive_the_round_trip() -> HfResult<()> {
        for changes in [
            vec![("feed_forward_proj", json!("gated-gelu")), ("dense_act_fn", json!("gelu_new"))],
            vec![("feed_forward_proj", json!("gated-silu")), ("is_gated_act", json!(true))],
            vec![("feed_forward_proj", json!("gelu"))],
            vec![("num_decoder_layers", json!(5)), ("d_kv", json!(7))],
            vec![("n_positions", json!(99)), ("decoder_start_token_id", json!(3))],
        ] {
            let described = describe(&text(&changes))?;
            assert_eq!(described.notes, Vec::<String>::new(), "{changes:?}");
            let written =
                express_as(Family::T5, &described.config, &described.spec, &described.ids, None)?;
            assert_eq!(written.config[changes[0].0], changes[0].1);
            let again = describe(&Value::Object(written.config).to_string())?;
            assert_eq!((again.config, again.spec), (described.config, described.spec));
        }
        Ok(())
    }

    /// `translate` failed at its first token.
    #[test]
    fn a_start_that_is_no_token_is_refused() {
        let changes = [("decoder_start_token_id", json!(1_000_000))];
        let error = describe(&text(&changes)).unwrap_err().to_string();
        assert!(error.contains("`decoder_start_token_id` = 1000000 must be below"), "{error}");
    }

    #[test]
    fn all_faults_are_listed_by_their_toml_keys() -> HfResult<()> {
        let described = describe(&text(&[]))?;
        let feed_forward = FeedForwardConfig::Glu(GluConfig {
            activation: Activation::Gelu,
            ..GluConfig::default()
        });
        let config = ModelConfig {
            bias: true,
            scale_output: false,
            cross_attention: None,
            feed_forward,
            ..described.config.clone()
        };
        let expected = [
            "model.bias",
            "model.cross_attention.score",
            "model.scale_output",
            "model.feed_forward.activation",
        ];
        assert_eq!(reasons(Family::T5, &config, &described), expected);
        Ok(())
    }
}
