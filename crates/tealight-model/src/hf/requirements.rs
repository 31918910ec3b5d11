//! Requirements on a configuration that several families share, and the standard deviation of the initial weights.
//! A function returns the setting that it has checked, if `config.json` states it.

use super::layers::{self, Layer};
use super::rules::Rules;
use crate::attention::output_gate::OutputGate;
use crate::attention::score::Score;
use crate::attention::sink::Sink;
use crate::attention::{AttentionConfig, softmax};
use crate::choice::names::Named as _;
use crate::config::{EmbeddingConfig, ModelConfig, NormPlacement};
use crate::layers::feed_forward::{Activation, FeedForwardConfig, GluConfig, MlpConfig};
use crate::layers::norm::{LayerNormConfig, NormConfig, RmsNormConfig};
use crate::params::init::{InitConfig, Normal};
use crate::position::{PositionConfig, learned};

/// Requires the same attention, positions and norms in all layers.
pub(super) fn check_equal_layers(config: &ModelConfig, rules: &mut Rules) {
    let has = "the same attention in all layers";
    rules.check(config.layers.is_empty(), "model.layers", "set", has);
    check_first_norm(config, rules);
}

/// Requires a norm in the first layer, too.
pub(super) fn check_first_norm(config: &ModelConfig, rules: &mut Rules) {
    rules.require_on("model.first_norm", config.first_norm, "a norm before every attention");
}

/// Requires the norms of all layers at one place.
pub(super) fn check_norm_placement(
    required: NormPlacement,
    config: &ModelConfig,
    rules: &mut Rules,
) {
    for Layer { norm_placement: (key, placement), .. } in layers::layers(config) {
        check_norm_placement_in(&key, placement, required, rules);
    }
}

/// Requires the norms of the layer of which `key` is set at one place.
pub(super) fn check_norm_placement_in(
    key: &str,
    placement: NormPlacement,
    required: NormPlacement,
    rules: &mut Rules,
) {
    if placement != required {
        rules.wrong_kind(key, placement.name(), required.name());
    }
}

/// Requires pre-norm blocks, and embeddings without scale or norm.
pub(super) fn check_pre_norm_blocks(config: &ModelConfig, rules: &mut Rules) {
    check_norm_placement(NormPlacement::Pre, config, rules);
    check_plain_stream(config, rules);
}

/// Requires residual connections, and embeddings without scale or norm.
pub(super) fn check_plain_stream(config: &ModelConfig, rules: &mut Rules) {
    rules.require_on("model.residual", config.residual, "residual connections");
    let EmbeddingConfig { scale, norm } = config.embedding;
    rules.require_off("model.embedding.scale", scale, "unscaled embeddings");
    rules.require_off("model.embedding.norm", norm, "embeddings without a norm");
}

/// Requires an MLP; its activation and inner width.
pub(super) fn mlp(config: &ModelConfig, rules: &mut Rules) -> (Activation, usize) {
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
pub(super) fn layer_norm_epsilon(config: &ModelConfig, rules: &mut Rules) -> f64 {
    if let NormConfig::LayerNorm(LayerNormConfig { epsilon, bias }) = config.norm {
        rules.require_on("model.norm.bias", bias, "a bias in every norm");
        return epsilon;
    }
    rules.wrong_kind("model.norm.kind", config.norm.kind(), "layer_norm");
    LayerNormConfig::default().epsilon
}

/// Requires RMSNorm; its ε.
pub(super) fn rms_norm_epsilon(config: &ModelConfig, rules: &mut Rules) -> f64 {
    if let NormConfig::RmsNorm(RmsNormConfig { epsilon }) = config.norm {
        return epsilon;
    }
    rules.wrong_kind("model.norm.kind", config.norm.kind(), "rms_norm");
    RmsNormConfig::default().epsilon
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
    rules.require_off(key, learned.skip_padding, "positions that count padding");
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
    let AttentionConfig::Softmax(softmax) = attention else {
        rules.wrong_kind(&key("kind"), attention.kind(), "softmax");
        return None;
    };
    let softmax::Config { score, n_kv_heads, qk_norm, sink, output_gate, .. } = *softmax;
    check_plain_heads(table, sink, output_gate, rules);
    let heads = n_kv_heads.is_none_or(|n| n == config.n_heads);
    rules.check(heads, &key("n_kv_heads"), "set", "one head of keys per head of queries");
    rules.require_off(&key("qk_norm"), qk_norm, "queries and keys without a norm");
    Some(score)
}

/// Requires layers without a convolution before their attention.
pub(super) fn check_no_convolutions(config: &ModelConfig, rules: &mut Rules) {
    for (table, attention) in config.attentions() {
        let size = attention.conv_size();
        let has = "attention without a convolution before it";
        if size > 0 {
            rules.fault(&[&format!("{table}.conv_size")], &size.to_string(), has);
        }
    }
}

/// Requires attention in the TOML's `table` without a sink and without a gate.
pub(super) fn check_plain_heads(
    table: &str,
    sink: Sink,
    output_gate: OutputGate,
    rules: &mut Rules,
) {
    let has = "weights that sum to 1";
    rules.check(sink == Sink::None, &format!("{table}.sink"), "set", has);
    let has = "heads without a gate";
    rules.check(output_gate == OutputGate::None, &format!("{table}.output_gate"), "set", has);
}

/// The standard deviation of the initial weights; that of the default `normal` for other kinds of `model.init`.
pub(super) fn initial_std(config: &ModelConfig) -> f64 {
    match config.init {
        InitConfig::Normal(Normal { std, .. }) => std,
        InitConfig::FanIn(_) => Normal::default().std,
    }
}
