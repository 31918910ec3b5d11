//! Common parts of BERT and its successors: post-norm blocks, learned positions, and a head with a
//! transform.

use serde_json::{Map, Value, json};

use super::keys::Keys;
use super::rules::Rules;
use super::table::{Alias, Pair, Role, Zeros};
use super::{HfResult, Sizes};
use crate::attention::score::Score;
use crate::attention::{AttentionConfig, softmax};
use crate::config::{EmbeddingConfig, LmHeadConfig, ModelConfig, NormPlacement};
use crate::layers::feed_forward::{Activation, FeedForwardConfig, MlpConfig};
use crate::layers::norm::{LayerNormConfig, NormConfig};
use crate::params::init::{InitConfig, Normal};
use crate::position::{PositionConfig, learned};

/// The settings of a model, independent of the names of their keys.
pub(super) struct Encoder {
    pub(super) d_model: usize,
    pub(super) n_layers: usize,
    pub(super) n_heads: usize,
    pub(super) d_ff: usize,
    pub(super) max_seq_len: usize,
    pub(super) activation: Activation,
    pub(super) dropout: f64,
    pub(super) epsilon: f64,
    pub(super) std: f64,
    pub(super) tied_output: bool,
}

impl Encoder {
    /// The configuration of a model with softmax attention and positions from row 0.
    pub(super) fn config(&self) -> ModelConfig {
        let Self { d_model, n_layers, n_heads, activation, std, epsilon, .. } = *self;
        ModelConfig {
            d_model,
            n_layers,
            n_heads,
            max_seq_len: Some(self.max_seq_len),
            dropout: self.dropout,
            norm_placement: NormPlacement::Post,
            tied_output: self.tied_output,
            embedding: EmbeddingConfig { scale: false, norm: true },
            position: PositionConfig::Learned(learned::Config { std, ..Default::default() }),
            lm_head: Some(LmHeadConfig { transform: true, activation, bias: true }),
            norm: NormConfig::LayerNorm(LayerNormConfig { epsilon, bias: true }),
            feed_forward: FeedForwardConfig::Mlp(MlpConfig { activation, d_ff: Some(self.d_ff) }),
            init: InitConfig::Normal(Normal { std, scale_residual: false }),
            ..ModelConfig::default()
        }
    }

    /// The settings of `config`, except for attention and positions, which the family handles.
    pub(super) fn of(config: &ModelConfig, sizes: &Sizes, rules: &mut Rules) -> Self {
        rules.check(!config.causal, "model.causal", "true", "bidirectional attention");
        let post = config.norm_placement == NormPlacement::Post;
        rules.check(post, "model.norm_placement", "\"pre\"", "\"post\"");
        rules.check(config.residual, "model.residual", "false", "residual connections");
        rules.check(config.bias, "model.bias", "false", "biases in all linear maps");
        rules.check(
            !config.embedding.scale,
            "model.embedding.scale",
            "true",
            "unscaled embeddings",
        );
        rules.check(
            config.embedding.norm,
            "model.embedding.norm",
            "false",
            "normalised embeddings",
        );
        check_one_width(config, rules);
        check_unscaled_output(config, rules);
        let head = config.lm_head.clone().unwrap_or_default();
        rules.check(head.transform, "model.lm_head.transform", "false", "a transform in the head");
        rules.check(head.bias, "model.lm_head.bias", "false", "a bias on the logits");
        let (activation, d_ff) = feed_forward(config, rules);
        Self {
            d_model: config.d_model,
            n_layers: config.n_layers,
            n_heads: config.n_heads,
            d_ff,
            max_seq_len: config.max_seq_len.unwrap_or(sizes.seq_len),
            activation,
            dropout: config.dropout,
            epsilon: epsilon(config, rules),
            std: initial_std(config),
            tied_output: config.tied_output,
        }
    }
}

/// Requires pre-norm blocks, and embeddings without scale or norm.
pub(super) fn check_pre_norm_blocks(config: &ModelConfig, rules: &mut Rules) {
    let pre = config.norm_placement == NormPlacement::Pre;
    rules.check(pre, "model.norm_placement", "\"post\"", "\"pre\"");
    rules.check(config.residual, "model.residual", "false", "residual connections");
    rules.check(!config.embedding.scale, "model.embedding.scale", "true", "unscaled embeddings");
    rules.check(
        !config.embedding.norm,
        "model.embedding.norm",
        "true",
        "embeddings without a norm",
    );
}

/// Requires an output layer without a scale.
pub(super) fn check_unscaled_output(config: &ModelConfig, rules: &mut Rules) {
    rules.check(!config.scale_output, "model.scale_output", "true", "an unscaled output");
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

/// Requires layer norms; their ε.
pub(super) fn epsilon(config: &ModelConfig, rules: &mut Rules) -> f64 {
    if let NormConfig::LayerNorm(LayerNormConfig { epsilon, bias }) = config.norm {
        rules.check(bias, "model.norm.bias", "false", "a bias in every norm");
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
    rules.check(!learned.skip_padding, key, "true", "positions that count padding");
}

/// Requires softmax attention with scaled dot products.
pub(super) fn check_softmax(config: &ModelConfig, rules: &mut Rules) {
    let score = softmax_score("model.attention", &config.attention, config, rules);
    let scaled = score.is_none_or(|score| score == Score::ScaledDot);
    rules.check(scaled, "model.attention.score", "another score", "\"scaled_dot\"");
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
    let AttentionConfig::Softmax(softmax::Config { score, n_kv_heads, qk_norm }) = attention else {
        rules.wrong_kind(&key("kind"), attention.kind(), "softmax");
        return None;
    };
    let heads = n_kv_heads.is_none_or(|n| n == config.n_heads);
    rules.check(heads, &key("n_kv_heads"), "set", "one head of keys per head of queries");
    rules.check(!qk_norm, &key("qk_norm"), "true", "queries and keys without a norm");
    Some(*score)
}

/// Requires the same activation in the head and in the feed-forward networks.
pub(super) fn check_one_activation(config: &ModelConfig, encoder: &Encoder, rules: &mut Rules) {
    let head = config.lm_head.clone().unwrap_or_default();
    if head.activation != encoder.activation {
        let keys = ["model.lm_head.activation", "model.feed_forward.activation"];
        rules.fault(&keys, "not the feed-forward network's", "the same activation in both");
    }
}

/// The values of keys that a `config.json` leaves out.
pub(super) struct Defaults {
    pub(super) vocab_size: usize,
    pub(super) activation: &'static str,
    pub(super) max_positions: usize,
    pub(super) epsilon: f64,
    pub(super) pad_id: u32,
    pub(super) bos_id: Option<u32>,
    pub(super) eos_id: Option<u32>,
}

/// Reads the keys of BERT.
pub(super) fn read(keys: &mut Keys, defaults: &Defaults) -> HfResult<(Encoder, Sizes)> {
    read_common(keys)?;
    let encoder = Encoder {
        d_model: keys.size("hidden_size", 768)?,
        n_layers: keys.size("num_hidden_layers", 12)?,
        n_heads: keys.size("num_attention_heads", 12)?,
        d_ff: keys.size("intermediate_size", 3072)?,
        max_seq_len: keys.size("max_position_embeddings", defaults.max_positions)?,
        activation: keys.activation("hidden_act", defaults.activation)?,
        dropout: keys.dropout(&["hidden_dropout_prob", "attention_probs_dropout_prob"])?,
        epsilon: keys.number("layer_norm_eps", defaults.epsilon)?,
        std: keys.number("initializer_range", 0.02)?,
        tied_output: keys.flag("tie_word_embeddings", true)?,
    };
    let sizes = Sizes {
        vocab_size: keys.size("vocab_size", defaults.vocab_size)?,
        n_token_types: keys.size("type_vocab_size", 2)?,
        seq_len: encoder.max_seq_len,
        ..read_ids(keys, Some(defaults.pad_id), defaults.bos_id, defaults.eos_id)?
    };
    Ok((encoder, sizes))
}

/// Refuses settings that no encoder here supports.
pub(super) fn read_common(keys: &mut Keys) -> HfResult<()> {
    let absolute = "relative positions are not supported for this class";
    keys.require("position_embedding_type", "absolute", absolute)?;
    for key in ["is_decoder", "add_cross_attention", "is_encoder_decoder", "tie_encoder_decoder"] {
        keys.require(
            key,
            false,
            "only bidirectional encoders without cross-attention are supported",
        )?;
    }
    keys.require(
        "cross_attention_hidden_size",
        Value::Null,
        "only encoders without cross-attention are supported",
    )
}

/// The ids of special tokens; all other sizes are 0.
pub(super) fn read_ids(
    keys: &mut Keys,
    pad_id: Option<u32>,
    bos_id: Option<u32>,
    eos_id: Option<u32>,
) -> HfResult<Sizes> {
    Ok(Sizes {
        pad_id: keys.id("pad_token_id", pad_id)?,
        bos_id: keys.id("bos_token_id", bos_id)?,
        eos_id: keys.id("eos_token_id", eos_id)?,
        ..Sizes::default()
    })
}

/// The configuration under the keys of BERT.
pub(super) fn write(encoder: &Encoder, sizes: &Sizes) -> Map<String, Value> {
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("vocab_size", sizes.vocab_size.into());
    put("hidden_size", encoder.d_model.into());
    put("num_hidden_layers", encoder.n_layers.into());
    put("num_attention_heads", encoder.n_heads.into());
    put("intermediate_size", encoder.d_ff.into());
    put("hidden_act", activation(encoder.activation).into());
    put("hidden_dropout_prob", encoder.dropout.into());
    put("attention_probs_dropout_prob", encoder.dropout.into());
    put("max_position_embeddings", encoder.max_seq_len.into());
    put("type_vocab_size", sizes.n_token_types.max(1).into());
    put("initializer_range", encoder.std.into());
    put("layer_norm_eps", encoder.epsilon.into());
    put("tie_word_embeddings", encoder.tied_output.into());
    map.extend(ids(sizes));
    map
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

/// The table of a single all-zero token type, for a model without token types.
pub(super) fn zero_type(name: &'static str, config: &ModelConfig, sizes: &Sizes) -> Vec<Zeros> {
    let zeros = Zeros { name, shape: [1, config.d_model] };
    (sizes.n_token_types == 0).then_some(zeros).into_iter().collect()
}
