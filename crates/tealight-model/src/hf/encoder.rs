//! Common parts of BERT and its successors: post-norm blocks, learned positions, and a head with a
//! transform.

use serde_json::{Map, Value};

use super::class::Model;
use super::ids::SpecialIds;
use super::keys::{self, Keys};
use super::rules::Rules;
use super::table::{Alias, Pair, Role};
use super::{HfResult, requirements};
use crate::config::{EmbeddingConfig, LmHeadConfig, ModelConfig, NormPlacement};
use crate::layers::feed_forward::{Activation, FeedForwardConfig, MlpConfig};
use crate::layers::norm::{LayerNormConfig, NormConfig};
use crate::models::masked_lm::MaskedLmSpec;
use crate::params::init::{InitConfig, Normal};
use crate::position::{PositionConfig, learned};

/// The keys of a family that not all share, and the values of keys that a `config.json` leaves out.
pub(super) struct FamilyKeys {
    pub(super) d_model: &'static str,
    pub(super) n_layers: (&'static str, usize),
    pub(super) n_heads: &'static str,
    pub(super) d_ff: &'static str,
    pub(super) activation: (&'static str, &'static str),
    pub(super) dropout: [&'static str; 2],
    /// `None` for DistilBERT, which has no token types.
    pub(super) n_token_types: Option<&'static str>,
    /// Without a key, ε always has the value.
    pub(super) epsilon: (Option<&'static str>, f64),
    pub(super) vocab_size: usize,
    pub(super) max_positions: usize,
    /// Of padding, start and end.
    pub(super) ids: [Option<u32>; 3],
}

pub(super) const BERT: FamilyKeys = FamilyKeys {
    d_model: "hidden_size",
    n_layers: ("num_hidden_layers", 12),
    n_heads: "num_attention_heads",
    d_ff: "intermediate_size",
    activation: ("hidden_act", "gelu"),
    dropout: ["hidden_dropout_prob", "attention_probs_dropout_prob"],
    n_token_types: Some("type_vocab_size"),
    epsilon: (Some("layer_norm_eps"), 1e-12),
    vocab_size: 30_522,
    max_positions: 512,
    ids: [Some(0), None, None],
};

/// Reads the keys of a family with softmax attention and positions from row 0.
pub(super) fn read(
    keys: &mut Keys,
    names: &FamilyKeys,
) -> HfResult<(ModelConfig, MaskedLmSpec, SpecialIds)> {
    read_common(keys)?;
    let d_model = keys.size(names.d_model, 768)?;
    let n_layers = keys.n_layers(names.n_layers.0, names.n_layers.1)?;
    let n_heads = keys.size(names.n_heads, 12)?;
    let d_ff = Some(keys.size(names.d_ff, 3072)?);
    let max_seq_len = keys.size("max_position_embeddings", names.max_positions)?;
    let activation = keys.activation(names.activation.0, names.activation.1)?;
    let dropout = keys.dropout(&names.dropout)?;
    let (key, epsilon) = names.epsilon;
    let epsilon = key.map_or(Ok(epsilon), |key| keys.number(key, epsilon))?;
    let std = keys.number("initializer_range", 0.02)?;
    let config = ModelConfig {
        d_model,
        n_layers,
        n_heads,
        max_seq_len: Some(max_seq_len),
        dropout,
        norm_placement: NormPlacement::Post,
        tied_output: keys.flag("tie_word_embeddings", true)?,
        embedding: EmbeddingConfig { scale: false, norm: true },
        position: PositionConfig::Learned(learned::Config { std, ..Default::default() }),
        lm_head: Some(LmHeadConfig { transform: true, activation, bias: true }),
        norm: NormConfig::LayerNorm(LayerNormConfig { epsilon, bias: true }),
        feed_forward: FeedForwardConfig::Mlp(MlpConfig { activation, d_ff }),
        init: InitConfig::Normal(Normal { std, scale_residual: false }),
        ..ModelConfig::default()
    };
    let vocab_size = keys.size("vocab_size", names.vocab_size)?;
    let n_token_types = names.n_token_types.map_or(Ok(0), |key| keys.size(key, 2))?;
    let ids = SpecialIds::read(keys, names.ids)?;
    let spec = MaskedLmSpec {
        vocab_size,
        n_token_types,
        pad_id: ids.pad,
        seq_len: max_seq_len,
        packed: false,
    };
    Ok((config, spec, ids))
}

/// What [`check`] finds in the blocks of a model.
pub(super) struct Blocks {
    activation: Activation,
    d_ff: usize,
    pub(super) epsilon: f64,
}

/// Requires the blocks and the head of BERT, but leaves attention and positions to the family.
pub(super) fn check(config: &ModelConfig, rules: &mut Rules) -> Blocks {
    rules.require_off("model.causal", config.causal, "bidirectional attention");
    requirements::check_norm_placement(NormPlacement::Post, config, rules);
    rules.require_on("model.residual", config.residual, "residual connections");
    requirements::check_equal_layers(config, rules);
    rules.require_on("model.bias", config.bias, "biases in all linear maps");
    let EmbeddingConfig { scale, norm } = config.embedding;
    rules.require_off("model.embedding.scale", scale, "unscaled embeddings");
    rules.require_on("model.embedding.norm", norm, "normalised embeddings");
    requirements::check_one_width(config, rules);
    rules.require_off("model.scale_output", config.scale_output, "an unscaled output");
    if let Some(head) = rules.lm_head(config) {
        rules.require_on("model.lm_head.transform", head.transform, "a transform in the head");
        rules.require_on("model.lm_head.bias", head.bias, "a bias on the logits");
    }
    let (activation, d_ff) = requirements::mlp(config, rules);
    Blocks { activation, d_ff, epsilon: requirements::layer_norm_epsilon(config, rules) }
}

/// The configuration of a model whose `blocks` are checked.
pub(super) fn write(
    names: &FamilyKeys,
    blocks: &Blocks,
    (config, spec, ids): Model<'_>,
) -> Map<String, Value> {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("vocab_size", spec.vocab_size().into());
    put(names.d_model, config.d_model.into());
    put(names.n_layers.0, config.n_layers.into());
    put(names.n_heads, config.n_heads.into());
    put(names.d_ff, blocks.d_ff.into());
    put(names.activation.0, keys::activation_name(blocks.activation).into());
    for key in names.dropout {
        put(key, config.dropout.into());
    }
    put(
        "max_position_embeddings",
        config.max_seq_len.or(spec.seq_len()).unwrap_or_default().into(),
    );
    match names.n_token_types {
        Some(key) => put(key, spec.n_token_types().max(1).into()),
        None => put("sinusoidal_pos_embds", false.into()),
    };
    put("initializer_range", requirements::initial_std(config).into());
    if let Some(key) = names.epsilon.0 {
        put(key, blocks.epsilon.into());
    }
    put("tie_word_embeddings", config.tied_output.into());
    map.extend(ids.keys());
    map
}

/// Requires the same activation in the head and in the feed-forward networks.
pub(super) fn check_one_activation(config: &ModelConfig, blocks: &Blocks, rules: &mut Rules) {
    let head = rules.lm_head(config);
    if head.is_some_and(|head| head.activation != blocks.activation) {
        let keys = ["model.lm_head.activation", "model.feed_forward.activation"];
        rules.fault(&keys, "not the feed-forward network's", "the same activation in both");
    }
}

/// Refuses settings that no encoder here supports.
fn read_common(keys: &mut Keys) -> HfResult<()> {
    let absolute = "relative positions are not supported for this class";
    keys.require("position_embedding_type", "absolute", absolute)?;
    for key in ["is_decoder", "add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder"] {
        let why = "only bidirectional encoders without cross-attention are supported";
        keys.require(key, false, why)?;
    }
    let why = "only encoders without cross-attention are supported";
    keys.require("cross_attention_hidden_size", Value::Null, why)
}

/// The names of BERT's embeddings and blocks under the prefix `base`.
pub(super) fn pairs(base: &str) -> Vec<Pair> {
    let embedding = format!("{base}.embeddings");
    let layer = format!("{base}.encoder.layer.*");
    let attention = format!("{layer}.attention");
    vec![
        Pair::same("embedding.token", format!("{embedding}.word_embeddings")),
        Pair::same("embedding.token_type", format!("{embedding}.token_type_embeddings")),
        Pair::same("position", format!("{embedding}.position_embeddings")),
        Pair::same("embedding.norm", format!("{embedding}.LayerNorm")),
        Pair::same("layer.*.attention.query", format!("{attention}.self.query")),
        Pair::same("layer.*.attention.key", format!("{attention}.self.key")),
        Pair::same("layer.*.attention.value", format!("{attention}.self.value")),
        Pair::same("layer.*.attention.conv", format!("{attention}.self.conv")),
        Pair::same("layer.*.attention.output", format!("{attention}.output.dense")),
        Pair::same("layer.*.attention_residual.norm", format!("{attention}.output.LayerNorm")),
        Pair::same("layer.*.feed_forward.up", format!("{layer}.intermediate.dense")),
        Pair::same("layer.*.feed_forward.down", format!("{layer}.output.dense")),
        Pair::same("layer.*.feed_forward_residual.norm", format!("{layer}.output.LayerNorm")),
    ]
}

/// The names of BERT's head.
pub(super) fn head_pairs() -> [Pair; 4] {
    [
        Pair::same("lm_head.dense", "cls.predictions.transform.dense"),
        Pair::same("lm_head.norm", "cls.predictions.transform.LayerNorm"),
        Pair::same("output.weight", "cls.predictions.decoder.weight"),
        Pair::same("output.bias", "cls.predictions.bias"),
    ]
}

/// Duplicates of the token table and of the output's bias. A tied output shares the token table. The bias
/// has two names: tied, both are one tensor; untied, version 5 saves both and uses the decoder's, and
/// version 4 needs the other.
pub(super) fn aliases(
    config: &ModelConfig,
    [token, weight]: [&'static str; 2],
    biases: Option<[&'static str; 2]>,
) -> Vec<Alias> {
    let role = if config.tied_output { Role::Tied } else { Role::Preferred };
    let biases = biases.map(|[of, copy]| Alias { name: copy, of, role });
    let weight = Alias { name: weight, of: token, role };
    config.tied_output.then_some(weight).into_iter().chain(biases).collect()
}
