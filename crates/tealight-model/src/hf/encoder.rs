//! Common parts of BERT and its successors: post-norm blocks, learned positions, and a head with a
//! transform.

use serde_json::{Map, Value, json};

use super::HfResult;
use super::keys::Keys;
use super::rules::Rules;
use super::sizes::Sizes;
use super::table::{Alias, Pair, Role};
use crate::attention::score::Score;
use crate::attention::{AttentionConfig, softmax};
use crate::config::{EmbeddingConfig, LmHeadConfig, ModelConfig, NormPlacement};
use crate::layers::feed_forward::{Activation, FeedForwardConfig, GluConfig, MlpConfig};
use crate::layers::norm::{LayerNormConfig, NormConfig};
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
pub(super) fn read(keys: &mut Keys, names: &FamilyKeys) -> HfResult<(ModelConfig, Sizes)> {
    read_common(keys)?;
    let d_model = keys.size(names.d_model, 768)?;
    let n_layers = keys.size(names.n_layers.0, names.n_layers.1)?;
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
    let sizes = Sizes {
        vocab_size: keys.size("vocab_size", names.vocab_size)?,
        n_token_types: names.n_token_types.map_or(Ok(0), |key| keys.size(key, 2))?,
        seq_len: max_seq_len,
        ..read_ids(keys, names.ids)?
    };
    Ok((config, sizes))
}

/// What [`check`] finds in the blocks of a model.
pub(super) struct Blocks {
    activation: Activation,
    d_ff: usize,
    pub(super) epsilon: f64,
}

/// Requires the blocks and the head of BERT, but leaves attention and positions to the family.
pub(super) fn check(config: &ModelConfig, rules: &mut Rules) -> Blocks {
    rules.switch("model.causal", config.causal, false, "bidirectional attention");
    let post = config.norm_placement == NormPlacement::Post;
    rules.check(post, "model.norm_placement", "\"pre\"", "\"post\"");
    rules.switch("model.residual", config.residual, true, "residual connections");
    check_equal_layers(config, rules);
    rules.switch("model.bias", config.bias, true, "biases in all linear maps");
    let EmbeddingConfig { scale, norm } = config.embedding;
    rules.switch("model.embedding.scale", scale, false, "unscaled embeddings");
    rules.switch("model.embedding.norm", norm, true, "normalised embeddings");
    check_one_width(config, rules);
    rules.switch("model.scale_output", config.scale_output, false, "an unscaled output");
    if let Some(head) = rules.lm_head(config) {
        rules.switch("model.lm_head.transform", head.transform, true, "a transform in the head");
        rules.switch("model.lm_head.bias", head.bias, true, "a bias on the logits");
    }
    let (activation, d_ff) = feed_forward(config, rules);
    Blocks { activation, d_ff, epsilon: epsilon(config, rules) }
}

/// The configuration of a model whose `blocks` are checked.
pub(super) fn write(
    names: &FamilyKeys,
    blocks: &Blocks,
    config: &ModelConfig,
    sizes: &Sizes,
) -> Map<String, Value> {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("vocab_size", sizes.vocab_size.into());
    put(names.d_model, config.d_model.into());
    put(names.n_layers.0, config.n_layers.into());
    put(names.n_heads, config.n_heads.into());
    put(names.d_ff, blocks.d_ff.into());
    put(names.activation.0, activation(blocks.activation).into());
    for key in names.dropout {
        put(key, config.dropout.into());
    }
    put("max_position_embeddings", config.max_seq_len.unwrap_or(sizes.seq_len).into());
    match names.n_token_types {
        Some(key) => put(key, sizes.n_token_types.max(1).into()),
        None => put("sinusoidal_pos_embds", false.into()),
    };
    put("initializer_range", initial_std(config).into());
    if let Some(key) = names.epsilon.0 {
        put(key, blocks.epsilon.into());
    }
    put("tie_word_embeddings", config.tied_output.into());
    map.extend(ids(sizes));
    map
}

/// Requires the same attention, positions and norms in all layers.
pub(super) fn check_equal_layers(config: &ModelConfig, rules: &mut Rules) {
    let has = "the same attention in all layers";
    rules.check(config.layers.is_empty(), "model.layers", "set", has);
    check_first_norm(config, rules);
}

/// Requires a norm in the first layer, too.
pub(super) fn check_first_norm(config: &ModelConfig, rules: &mut Rules) {
    rules.switch("model.first_norm", config.first_norm, true, "a norm before every attention");
}

/// Requires pre-norm blocks, and embeddings without scale or norm.
pub(super) fn check_pre_norm_blocks(config: &ModelConfig, rules: &mut Rules) {
    let pre = config.norm_placement == NormPlacement::Pre;
    rules.check(pre, "model.norm_placement", "\"post\"", "\"pre\"");
    rules.switch("model.residual", config.residual, true, "residual connections");
    let EmbeddingConfig { scale, norm } = config.embedding;
    rules.switch("model.embedding.scale", scale, false, "unscaled embeddings");
    rules.switch("model.embedding.norm", norm, false, "embeddings without a norm");
}

/// The standard deviation of the initial weights; that of the default `normal` for other kinds of `model.init`.
pub(super) fn initial_std(config: &ModelConfig) -> f64 {
    match config.init {
        InitConfig::Normal(Normal { std, .. }) => std,
        InitConfig::FanIn(_) => Normal::default().std,
    }
}

/// Requires an MLP; its activation and inner width.
pub(super) fn feed_forward(config: &ModelConfig, rules: &mut Rules) -> (Activation, usize) {
    let d_ff = config.feed_forward.d_ff(config.d_model).unwrap_or_default();
    if let FeedForwardConfig::Mlp(MlpConfig { activation, .. }) = config.feed_forward {
        return (activation, d_ff);
    }
    rules.wrong_kind("model.feed_forward.kind", config.feed_forward.kind(), "mlp");
    (Activation::Gelu, d_ff)
}

/// Requires a gated network; its activation and inner width.
pub(super) fn glu(config: &ModelConfig, rules: &mut Rules) -> (Activation, usize) {
    let d_ff = config.feed_forward.d_ff(config.d_model).unwrap_or_default();
    if let FeedForwardConfig::Glu(GluConfig { activation, .. }) = config.feed_forward {
        return (activation, d_ff);
    }
    rules.wrong_kind("model.feed_forward.kind", config.feed_forward.kind(), "glu");
    (Activation::Silu, d_ff)
}

/// Requires layer norms; their ε.
pub(super) fn epsilon(config: &ModelConfig, rules: &mut Rules) -> f64 {
    if let NormConfig::LayerNorm(LayerNormConfig { epsilon, bias }) = config.norm {
        rules.switch("model.norm.bias", bias, true, "a bias in every norm");
        return epsilon;
    }
    rules.wrong_kind("model.norm.kind", config.norm.kind(), "layer_norm");
    LayerNormConfig::default().epsilon
}

/// Requires learned positions; their settings.
pub(super) fn learned_position(config: &ModelConfig, rules: &mut Rules) -> learned::Config {
    if let PositionConfig::Learned(learned) = &config.position {
        return learned.clone();
    }
    rules.wrong_kind("model.position.kind", config.position.kind(), "learned");
    learned::Config::default()
}

/// Requires learned positions from the row `offset` that count padding.
pub(super) fn check_positions_from(offset: usize, config: &ModelConfig, rules: &mut Rules) {
    let learned = learned_position(config, rules);
    let rows = learned.offset.to_string();
    let has = format!("positions from row {offset}");
    if matches!(config.position, PositionConfig::Learned(_)) {
        rules.check(learned.offset == offset, "model.position.offset", &rows, &has);
    }
    let key = "model.position.skip_padding";
    rules.switch(key, learned.skip_padding, false, "positions that count padding");
}

/// Requires softmax attention with scaled dot products.
pub(super) fn check_softmax(config: &ModelConfig, rules: &mut Rules) {
    check_softmax_in("model.attention", &config.attention, config, rules);
}

/// As [`check_softmax`], of the attention in the TOML's `table`.
pub(super) fn check_softmax_in(
    table: &str,
    attention: &AttentionConfig,
    config: &ModelConfig,
    rules: &mut Rules,
) {
    let score = softmax_score(table, attention, config, rules);
    let scaled = score.is_none_or(|score| score == Score::ScaledDot);
    rules.check(scaled, &format!("{table}.score"), "another score", "\"scaled_dot\"");
}

/// Requires heads whose total width is `d_model`.
pub(super) fn check_one_width(config: &ModelConfig, rules: &mut Rules) {
    let head_dim = config.head_dim();
    let one = config.n_heads.checked_mul(head_dim) == Some(config.d_model);
    rules.check(one, "model.head_dim", &head_dim.to_string(), "d_model / n_heads");
}

/// Requires softmax attention in the TOML's `table`, without shared keys or normalised queries; its score.
pub(super) fn softmax_score(
    table: &str,
    attention: &AttentionConfig,
    config: &ModelConfig,
    rules: &mut Rules,
) -> Option<Score> {
    let key = |name: &str| format!("{table}.{name}");
    let AttentionConfig::Softmax(softmax::Config { score, n_kv_heads, qk_norm, .. }) = attention
    else {
        rules.wrong_kind(&key("kind"), attention.kind(), "softmax");
        return None;
    };
    let heads = n_kv_heads.is_none_or(|n| n == config.n_heads);
    rules.check(heads, &key("n_kv_heads"), "set", "one head of keys per head of queries");
    rules.switch(&key("qk_norm"), *qk_norm, false, "queries and keys without a norm");
    Some(*score)
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

/// The ids of padding, start and end, with their defaults; all other sizes are 0.
pub(super) fn read_ids(keys: &mut Keys, [pad, bos, eos]: [Option<u32>; 3]) -> HfResult<Sizes> {
    Ok(Sizes {
        pad_id: keys.id("pad_token_id", pad)?,
        bos_id: keys.id("bos_token_id", bos)?,
        eos_id: keys.id("eos_token_id", eos)?,
        ..Sizes::default()
    })
}

pub(super) fn ids(sizes: &Sizes) -> Map<String, Value> {
    let Sizes { pad_id, bos_id, eos_id, .. } = *sizes;
    let ids = json!({ "pad_token_id": pad_id, "bos_token_id": bos_id, "eos_token_id": eos_id });
    ids.as_object().cloned().unwrap_or_default()
}

pub(super) fn activation(activation: Activation) -> &'static str {
    match activation {
        Activation::Gelu => "gelu",
        Activation::GeluTanh => "gelu_new",
        Activation::Relu => "relu",
        Activation::Silu => "silu",
        Activation::Sigmoid => "sigmoid",
    }
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
