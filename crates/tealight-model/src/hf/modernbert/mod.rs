//! ModernBERT (Warner et al. 2024, <https://arxiv.org/abs/2412.13663>): `ModernBertForMaskedLM`,
//! `ModernBertForSequenceClassification` and `ModernBertForTokenClassification`.
//!
//! Layers attend to all positions ("full") or to a window ("sliding"), each kind with a rotary base of its own.
//!
//! The head is the same for masked tokens, for tags of tokens, and for classes, which are read from the first state or
//! from the mean.
//!
//! The first layer has no norm before its attention, as the embeddings are normalised.

mod layers;

use crate::models::masked_lm::MaskedLmSpec;
use crate::models::spec::ModelSpec;
use serde_json::{Map, Value, json};

use super::class::{self, Class, Model};
use super::classification::{self, HeadClass, HeadOf, ReadHead};
use super::ids::SpecialIds;
use super::keys::{self, Keys};
use super::rules::Rules;
use super::table::Pair;
use super::{HfError, HfResult, encoder, requirements};
use crate::choice::names::Named as _;
use crate::config::{EmbeddingConfig, LmHeadConfig, ModelConfig, NormPlacement};
use crate::layers::classifier_head::{ClassifierHead, DenseHead};
use crate::layers::feed_forward::{Activation, FeedForwardConfig, GluConfig};
use crate::layers::norm::{LayerNormConfig, NormConfig};
use crate::models::read_out::ReadOut;
use crate::params::init::{InitConfig, Normal};

/// The names of what precedes the output of a classifier or a tagger, here and in the file.
const HEAD: &[[&str; 2]] = &[["classifier.dense", "head.dense"], ["classifier.norm", "head.norm"]];

pub(super) const CLASS: Class = Class {
    architecture: "ModernBertForMaskedLM",
    has: class::is_encoder,
    base: "model",
    roots: &["embeddings.", "layers.", "final_norm."],
    unused: &["rotary_emb", "position_ids"],
    read,
    write,
    pairs,
    arranged: None,
    aliases: |config| {
        encoder::aliases(config, ["model.embeddings.tok_embeddings.weight", "decoder.weight"], None)
    },
    token_types: None,
    heads: &[
        HeadClass {
            architecture: "ModernBertForSequenceClassification",
            is_of_tokens: false,
            read: read_head,
            write: write_head,
            tensors: HEAD,
            output: "classifier",
        },
        HeadClass {
            architecture: "ModernBertForTokenClassification",
            is_of_tokens: true,
            read: |keys, config| {
                keys.ignore("classifier_pooling");
                Ok((ClassifierHead::Dense(read_dense(keys, config)?), None))
            },
            write: |(head, _, config), rules| write_dense(head, config, rules),
            tensors: HEAD,
            output: "classifier",
        },
    ],
};

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    // How logits and losses are computed, a copy of `norm_eps`, and settings of the initialisation.
    for key in "sparse_prediction sparse_pred_ignore_index deterministic_flash_attn reference_compile \
                repad_logits_with_grad layer_norm_eps initializer_cutoff_factor position_embedding_type"
        .split_whitespace()
    {
        keys.ignore(key);
    }
    let n_layers = keys.n_layers("num_hidden_layers", 22)?;
    let max_seq_len = keys.size("max_position_embeddings", 8192)?;
    let std = keys.number("initializer_range", 0.02)?;
    let epsilon = keys.number("norm_eps", 1e-5)?;
    let activation = keys.activation("hidden_activation", "gelu")?;
    let d_ff = Some(keys.size("intermediate_size", 1152)?);
    let head = LmHeadConfig {
        transform: true,
        activation: keys.activation("classifier_activation", "gelu")?,
        bias: keys.flag("decoder_bias", true)?,
    };
    let (position, layers) = layers::read(keys, n_layers)?;
    let rates = ["mlp_dropout", "attention_dropout", "embedding_dropout"];
    let config = ModelConfig {
        d_model: keys.size("hidden_size", 768)?,
        n_layers,
        n_heads: keys.size("num_attention_heads", 12)?,
        max_seq_len: Some(max_seq_len),
        dropout: keys.dropout_with_default(&rates, 0.)?,
        norm_placement: NormPlacement::Pre,
        first_norm: false,
        bias: read_bias(keys)?,
        tied_output: keys.flag("tie_word_embeddings", true)?,
        embedding: EmbeddingConfig { scale: false, norm: true },
        position,
        layers,
        lm_head: Some(head),
        norm: NormConfig::LayerNorm(LayerNormConfig {
            epsilon,
            bias: keys.flag("norm_bias", false)?,
        }),
        feed_forward: FeedForwardConfig::Glu(GluConfig { activation, d_ff }),
        init: InitConfig::Normal(Normal { std, scale_residual: false }),
        ..ModelConfig::default()
    };
    let vocab_size = keys.size("vocab_size", 50_368)?;
    let ids = SpecialIds::read(keys, [Some(50_283), Some(50_281), Some(50_282)])?;
    let spec = MaskedLmSpec {
        vocab_size,
        n_token_types: 0,
        pad_id: ids.pad,
        seq_len: max_seq_len,
        packed: false,
    };
    Ok((config, ModelSpec::MaskedLm(spec), ids))
}

/// What `classifier_pooling` can say.
const READ_OUTS: [ReadOut; 2] = [ReadOut::Cls, ReadOut::Mean];

/// The head of a classifier. The state is read before it.
fn read_head(keys: &mut Keys, config: &ModelConfig) -> ReadHead {
    let pooling = keys.word("classifier_pooling", ReadOut::Cls.name())?;
    let read_out = READ_OUTS.into_iter().find(|known| known.name() == pooling);
    let read_out = read_out.ok_or_else(|| {
        let why = "expected \"cls\" or \"mean\"";
        keys.unsupported("classifier_pooling", &format!("\"{pooling}\""), why)
    })?;
    Ok((ClassifierHead::Dense(read_dense(keys, config)?), Some(read_out)))
}

/// The head of classes and of tags, which is that of the masked language model with another output.
fn read_dense(keys: &mut Keys, config: &ModelConfig) -> HfResult<DenseHead> {
    Ok(DenseHead {
        activation: config.lm_head.clone().unwrap_or_default().activation.into(),
        bias: config.bias,
        norm: true,
        input_dropout: false,
        dropout: Some(keys.number("classifier_dropout", 0.)?),
    })
}

fn write_head((head, read_out, config): HeadOf<'_>, rules: &mut Rules) -> Map<String, Value> {
    let mut map = write_dense(head, config, rules);
    let word = read_out.map_or("", ReadOut::name);
    let reads = read_out.is_some_and(|read_out| READ_OUTS.contains(&read_out));
    rules.check(reads, "task.read_out", &format!("\"{word}\""), "\"cls\" or \"mean\"");
    map.insert("classifier_pooling".to_owned(), word.into());
    map
}

fn write_dense(
    head: &ClassifierHead,
    config: &ModelConfig,
    rules: &mut Rules,
) -> Map<String, Value> {
    let Some(head) = classification::dense(head, rules) else { return Map::new() };
    let DenseHead { activation, bias, norm, input_dropout, dropout } = *head;
    let same = bias == config.bias;
    let has = "`model.bias` in the head, too";
    rules.check(same, "model.classifier.bias", &bias.to_string(), has);
    rules.require_on("model.classifier.norm", norm, "a norm in the head");
    if input_dropout {
        rules.note("in training, transformers has no dropout before the dense map of the head");
    }
    let known = activation.of_blocks();
    let has = "an activation that networks of the blocks have, too";
    rules.check(known.is_some(), "model.classifier.activation", "\"tanh\"", has);
    let map = json!({
        "classifier_activation": keys::activation_name(known.unwrap_or(Activation::Gelu)),
        "classifier_dropout": dropout.unwrap_or(config.dropout),
    });
    map.as_object().cloned().unwrap_or_default()
}

/// Whether linear maps add a bias: one setting here, three keys there.
fn read_bias(keys: &mut Keys) -> HfResult<bool> {
    let bias = keys.flag("attention_bias", false)?;
    for key in ["mlp_bias", "classifier_bias"] {
        let value = keys.flag(key, false)?;
        if value != bias {
            let message = format!(
                "`{key}` = {value} is not supported with `attention_bias` = {bias}: all linear maps have a bias, or none"
            );
            return Err(HfError::Config(message));
        }
    }
    Ok(bias)
}

fn write((config, spec, ids): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    let head = check(config, spec, rules);
    let (activation, d_ff) = requirements::glu(config, rules);
    let (epsilon, norm_bias) = check_norm(config, rules);
    let layers = layers::write(config, rules);
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("vocab_size", spec.vocab_size().into());
    put("hidden_size", config.d_model.into());
    put("num_hidden_layers", config.n_layers.into());
    put("num_attention_heads", config.n_heads.into());
    put("intermediate_size", d_ff.into());
    put("hidden_activation", keys::activation_name(activation).into());
    put(
        "max_position_embeddings",
        config.max_seq_len.or(spec.seq_len()).unwrap_or_default().into(),
    );
    if let Some(head) = head {
        put("classifier_activation", keys::activation_name(head.activation).into());
        put("classifier_dropout", config.dropout.into());
        put("decoder_bias", head.bias.into());
    }
    for key in ["embedding_dropout", "attention_dropout", "mlp_dropout"] {
        put(key, config.dropout.into());
    }
    for key in ["attention_bias", "mlp_bias", "classifier_bias"] {
        put(key, config.bias.into());
    }
    put("norm_eps", epsilon.into());
    put("norm_bias", norm_bias.into());
    put("initializer_range", requirements::initial_std(config).into());
    put("tie_word_embeddings", config.tied_output.into());
    map.extend(layers);
    map.extend(ids.keys());
    map.insert("cls_token_id".to_owned(), ids.bos.into());
    map.insert("sep_token_id".to_owned(), ids.eos.into());
    map
}

/// Requires all but the layers' attention, network and norms; the settings of a language-model head.
fn check(config: &ModelConfig, spec: &ModelSpec, rules: &mut Rules) -> Option<LmHeadConfig> {
    rules.require_off("model.causal", config.causal, "bidirectional attention");
    requirements::check_norm_placement(NormPlacement::Pre, config, rules);
    let has = "no norm before the first attention";
    rules.require_off("model.first_norm", config.first_norm, has);
    rules.require_on("model.residual", config.residual, "residual connections");
    let EmbeddingConfig { scale, norm } = config.embedding;
    rules.require_off("model.embedding.scale", scale, "unscaled embeddings");
    rules.require_on("model.embedding.norm", norm, "normalised embeddings");
    requirements::check_one_width(config, rules);
    rules.require_off("model.scale_output", config.scale_output, "an unscaled output");
    let types = spec.n_token_types().to_string();
    rules.check(spec.n_token_types() == 0, "the number of token types", &types, "no token types");
    let head = rules.lm_head(config);
    if let Some(head) = &head {
        rules.require_on("model.lm_head.transform", head.transform, "a transform in the head");
    }
    head
}

/// Requires layer norms; their ε and whether they have a bias.
fn check_norm(config: &ModelConfig, rules: &mut Rules) -> (f64, bool) {
    if let NormConfig::LayerNorm(LayerNormConfig { epsilon, bias }) = config.norm {
        return (epsilon, bias);
    }
    rules.wrong_kind("model.norm.kind", config.norm.kind(), "layer_norm");
    (LayerNormConfig::default().epsilon, false)
}

fn pairs(_: &ModelConfig) -> Vec<Pair> {
    let layer = "model.layers.*";
    let heads = ["query", "key", "value"].map(|name| format!("layer.*.attention.{name}"));
    vec![
        Pair::same("embedding.token", "model.embeddings.tok_embeddings"),
        Pair::same("embedding.norm", "model.embeddings.norm"),
        Pair::same("layer.*.attention_residual.norm", format!("{layer}.attn_norm")),
        Pair::joined(&heads.each_ref().map(String::as_str), format!("{layer}.attn.Wqkv")),
        Pair::same("layer.*.attention.output", format!("{layer}.attn.Wo")),
        Pair::same("layer.*.feed_forward_residual.norm", format!("{layer}.mlp_norm")),
        Pair::joined(
            &["layer.*.feed_forward.gate", "layer.*.feed_forward.up"],
            format!("{layer}.mlp.Wi"),
        ),
        Pair::same("layer.*.feed_forward.down", format!("{layer}.mlp.Wo")),
        Pair::same("final_norm", "model.final_norm"),
        Pair::same("lm_head.dense", "head.dense"),
        Pair::same("lm_head.norm", "head.norm"),
        Pair::same("output.weight", "decoder.weight"),
        Pair::same("output.bias", "decoder.bias"),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::test_support::{assert_refused, changed, reasons};
    use super::super::{Family, describe};
    use super::*;
    use crate::attention::{AttentionConfig, local};
    use crate::config::LayerConfig;
    use crate::position::{PositionConfig, rotary};

    pub(super) fn config() -> Value {
        json!({
            "model_type": "modernbert", "hidden_size": 30, "num_attention_heads": 5, "num_hidden_layers": 7,
        })
    }

    #[test]
    fn settings_with_other_results_are_refused_by_key() {
        let rope = json!({ "full_attention": { "rope_type": "yarn", "rope_theta": 1.0 } });
        let changes = [
            ("hidden_activation", json!("mish")),
            ("mlp_bias", json!(true)),
            ("classifier_bias", json!(true)),
            ("layer_types", json!(3)),
            ("rope_parameters", json!(3)),
            ("tie_word_embeddings", json!(3)),
        ];
        assert_refused(&config(), &changes);
        for (change, message) in [
            (("rope_parameters", rope), "`rope_parameters.full_attention.rope_type` = \"yarn\""),
            (("layer_types", json!(["full_attention"])), "`layer_types` has 1 entries"),
            (("layer_types", json!(vec!["global"; 7])), "`layer_types` contains \"global\""),
        ] {
            let error = describe(&changed(&config(), &[change])).expect_err("refused").to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn all_faults_are_listed_by_their_toml_keys() -> HfResult<()> {
        let described = describe(&config().to_string())?;
        let other = AttentionConfig::default_of("linear").expect("a kind");
        let window = AttentionConfig::Local(local::Config { window: 3, ..Default::default() });
        let layer = |attention| LayerConfig { attention: Some(attention), ..Default::default() };
        let config = ModelConfig {
            first_norm: true,
            position: PositionConfig::Rotary(rotary::Config::default()),
            feed_forward: FeedForwardConfig::None,
            layers: vec![layer(other), described.config.layers[1].clone(), layer(window)],
            ..described.config.clone()
        };
        let expected = [
            "model.first_norm",
            "model.feed_forward.kind",
            "model.layers[0].attention.kind",
            "model.position.layout",
            "model.layers[2].attention.window",
        ];
        assert_eq!(reasons(Family::ModernBert, &config, &described), expected);
        Ok(())
    }
}
