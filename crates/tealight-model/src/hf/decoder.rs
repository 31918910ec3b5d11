//! Common parts of Llama and its successors: pre-norm blocks with RMSNorm, rotary positions, grouped queries
//! and a gated feed-forward network.
//!
//! The base and the scaling of the rotary positions have two spellings: `rope_parameters` in version 5 of
//! `transformers`, `rope_theta` and `rope_scaling` before. Version 4 ignores the first, so both are written.

use serde_json::{Map, Value, json};

use super::class::{self, Class, Model, Read, Write};
use super::ids::SpecialIds;
use super::keys::{self, Keys};
use super::layers::{self, Kind, Layer};
use super::rules::Rules;
use super::table::{Alias, Pair, Role};
use super::{HfResult, requirements};
use crate::attention::qk_norm::NormOver;
use crate::attention::score::Score;
use crate::attention::{AttentionConfig, local, softmax};
use crate::choice::names::Named as _;
use crate::config::{LayerConfig, ModelConfig, NormPlacement};
use crate::layers::feed_forward::{FeedForwardConfig, GluConfig};
use crate::layers::norm::{NormConfig, RmsNormConfig};
use crate::models::causal_lm::CausalLmSpec;
use crate::models::spec::ModelSpec;
use crate::params::init::{InitConfig, Normal};
use crate::position::PositionConfig;
use crate::position::rotary::{self, Layout};
use crate::position::scaling::{Linear, Llama3, Scaling};

/// The class `architecture` of a family.
pub(super) const fn class(architecture: &'static str, read: Read, write: Write) -> Class {
    Class {
        architecture,
        has: class::is_decoder,
        base: "model",
        roots: &["embed_tokens.", "layers.", "norm."],
        // Old files contain the rotary frequencies, which follow from the configuration.
        unused: &["rotary_emb.inv_freq"],
        read,
        write,
        pairs,
        arranged: None,
        aliases,
        token_types: None,
        heads: &[],
    }
}

/// The differences between the families, and the values of keys that a `config.json` leaves out.
pub(super) struct FamilyDefaults {
    pub(super) vocab_size: usize,
    pub(super) d_ff: usize,
    /// `None`: as many as of queries.
    pub(super) n_kv_heads: Option<usize>,
    /// `None`: `hidden_size` / `num_attention_heads`.
    pub(super) head_dim: Option<usize>,
    pub(super) max_positions: usize,
    /// Whether queries and keys are normalised.
    pub(super) qk_norm: bool,
    /// Whether some layers may have a window and others none.
    pub(super) layers_differ: bool,
    /// Ids of the start and end tokens.
    pub(super) ids: [Option<u32>; 2],
}

/// Reads the keys of all families.
pub(super) fn read(
    keys: &mut Keys,
    family: &FamilyDefaults,
) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    let d_model = keys.size("hidden_size", 4096)?;
    let n_heads = keys.size("num_attention_heads", 32)?;
    let default = if keys.is_absent("num_key_value_heads") { family.n_kv_heads } else { None };
    let n_kv_heads = keys.optional_size("num_key_value_heads")?.or(default);
    let head_dim = keys.optional_size("head_dim")?.or(family.head_dim);
    let epsilon = keys.number("rms_norm_eps", 1e-6)?;
    let max_seq_len = keys.size("max_position_embeddings", family.max_positions)?;
    let heads = softmax::Config {
        n_kv_heads: n_kv_heads.filter(|n| *n != n_heads),
        qk_norm: family.qk_norm,
        qk_norm_epsilon: if family.qk_norm {
            epsilon
        } else {
            softmax::Config::default().qk_norm_epsilon
        },
        ..softmax::Config::default()
    };
    let std = keys.number("initializer_range", 0.02)?;
    let config = ModelConfig {
        d_model,
        n_layers: keys.n_layers("num_hidden_layers", 32)?,
        n_heads,
        head_dim: head_dim.filter(|dim| dim.checked_mul(n_heads) != Some(d_model)),
        max_seq_len: Some(max_seq_len),
        causal: true,
        dropout: keys.number("attention_dropout", 0.)?,
        norm_placement: NormPlacement::Pre,
        bias: false,
        tied_output: keys.flag("tie_word_embeddings", false)?,
        position: PositionConfig::Rotary(rotary_position(keys)?),
        attention: AttentionConfig::Softmax(heads),
        norm: NormConfig::RmsNorm(RmsNormConfig { epsilon }),
        feed_forward: FeedForwardConfig::Glu(GluConfig {
            activation: keys.activation("hidden_act", "silu")?,
            d_ff: Some(keys.size("intermediate_size", family.d_ff)?),
        }),
        init: InitConfig::Normal(Normal { std, scale_residual: false }),
        ..ModelConfig::default()
    };
    let [bos, eos] = family.ids;
    let vocab_size = keys.size("vocab_size", family.vocab_size)?;
    let spec = CausalLmSpec { vocab_size, seq_len: max_seq_len, packed: false };
    let ids = SpecialIds::read(keys, [None, bos, eos])?;
    Ok((config, ModelSpec::CausalLm(spec), ids))
}

/// The same model, in which the positions of sliding layers attend to the last `window`, themselves included.
pub(super) fn with_windows(config: ModelConfig, kinds: &[Kind], window: usize) -> ModelConfig {
    let AttentionConfig::Softmax(heads) = &config.attention else { return config };
    let softmax::Config { n_kv_heads, qk_norm, qk_norm_epsilon, .. } = *heads;
    let local =
        local::Config { window, n_kv_heads, qk_norm, qk_norm_epsilon, ..Default::default() };
    let local = AttentionConfig::Local(local);
    let is = |kind: Kind| kinds.iter().all(|one| *one == kind);
    match (is(Kind::Full), is(Kind::Sliding)) {
        (true, _) => config,
        (false, true) => ModelConfig { attention: local, ..config },
        (false, false) => {
            let sliding = LayerConfig { attention: Some(local), ..Default::default() };
            ModelConfig { layers: layers::entries(kinds, &sliding), ..config }
        }
    }
}

/// Reads the rotary positions in either spelling. If there are two tables, both versions of `transformers`
/// read `rope_scaling`.
fn rotary_position(keys: &mut Keys) -> HfResult<rotary::Config> {
    let has_base = !keys.is_absent("rope_theta");
    let base = keys.number("rope_theta", rotary::Config::default().base)?;
    let old = keys.table("rope_scaling", |table| rotary_table(table, base))?;
    let new = keys.table("rope_parameters", |table| rotary_table(table, base))?;
    if let (None, Some(new), true) = (&old, &new, has_base)
        && new.base != base
    {
        keys.note(format!(
            "`rope_theta` = {base} is ignored: `rope_parameters.rope_theta` = {} is used",
            new.base
        ));
    }
    let default = || rotary::Config { base, layout: Layout::Half, scaling: Scaling::None };
    Ok(old.or(new).unwrap_or_else(default))
}

/// Reads `rope_parameters` or `rope_scaling`, in which an absent `rope_theta` is `base`.
pub(super) fn rotary_table(keys: &mut Keys, base: f64) -> HfResult<rotary::Config> {
    let base = keys.number("rope_theta", base)?;
    let share = keys.number("partial_rotary_factor", 1.)?;
    if share != 1. {
        let why = "all features of a head are rotated";
        return Err(keys.unsupported("partial_rotary_factor", &share.to_string(), why));
    }
    let old_name = keys.word("type", "default")?;
    let kind = keys.word("rope_type", &old_name)?;
    let scaling = match kind.as_str() {
        "default" => Scaling::None,
        "linear" => Scaling::Linear(Linear { factor: keys.required_number("factor")? }),
        "llama3" => Scaling::Llama3(Llama3 {
            factor: keys.required_number("factor")?,
            low_freq_factor: keys.required_number("low_freq_factor")?,
            high_freq_factor: keys.required_number("high_freq_factor")?,
            original_max_seq_len: keys.required_size("original_max_position_embeddings")?,
        }),
        _ => {
            let why = "expected one of default, linear, llama3";
            return Err(keys.unsupported("rope_type", &format!("\"{kind}\""), why));
        }
    };
    Ok(rotary::Config { base, layout: Layout::Half, scaling })
}

/// Checks `config` and writes the keys of all families; also the window of its sliding layers.
pub(super) fn write(
    family: &FamilyDefaults,
    (config, spec, ids): Model<'_>,
    rules: &mut Rules,
) -> (Map<String, Value>, Option<usize>) {
    rules.require_on("model.causal", config.causal, "causal attention");
    if family.layers_differ {
        requirements::check_first_norm(config, rules);
    } else {
        requirements::check_equal_layers(config, rules);
    }
    requirements::check_pre_norm_blocks(config, rules);
    rules.require_off("model.scale_output", config.scale_output, "an unscaled output");
    let epsilon = requirements::rms_norm_epsilon(config, rules);
    let Heads { n_kv_heads, window } = Heads::check(family, config, epsilon, rules);
    let n_kv_heads = n_kv_heads.unwrap_or(config.n_heads);
    let (activation, d_ff) = requirements::glu(config, rules);
    let mut map = rotary_keys(config, rules);
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("vocab_size", spec.vocab_size().into());
    put("hidden_size", config.d_model.into());
    put("num_hidden_layers", config.n_layers.into());
    put("num_attention_heads", config.n_heads.into());
    put("num_key_value_heads", n_kv_heads.into());
    put("head_dim", config.head_dim().into());
    put("intermediate_size", d_ff.into());
    put("hidden_act", keys::activation_name(activation).into());
    put(
        "max_position_embeddings",
        config.max_seq_len.or(spec.seq_len()).unwrap_or_default().into(),
    );
    put("rms_norm_eps", epsilon.into());
    put("attention_dropout", config.dropout.into());
    put("initializer_range", requirements::initial_std(config).into());
    put("tie_word_embeddings", config.tied_output.into());
    map.extend(ids.keys());
    (map, window)
}

/// What the attention of all layers shares.
#[derive(Default)]
struct Heads {
    n_kv_heads: Option<usize>,
    window: Option<usize>,
}

impl Heads {
    /// Requires attention with scaled dot products and the family's norms, and one number of heads of keys and one
    /// window for all layers.
    fn check(
        family: &FamilyDefaults,
        config: &ModelConfig,
        epsilon: f64,
        rules: &mut Rules,
    ) -> Self {
        let mut shared = Self::default();
        for Layer { attention: (table, attention), .. } in layers::layers(config) {
            let heads = match attention {
                AttentionConfig::Softmax(softmax) => softmax.clone(),
                AttentionConfig::Local(local) => {
                    let local::Config { window, n_kv_heads, qk_norm, qk_norm_epsilon, .. } = *local;
                    let local::Config { sink, output_gate, .. } = *local;
                    let (key, all) = (format!("{table}.window"), "window for all layers");
                    layers::check_same(&mut shared.window, &key, window, all, rules);
                    let score = Score::ScaledDot;
                    softmax::Config {
                        score,
                        n_kv_heads,
                        qk_norm,
                        qk_norm_epsilon,
                        sink,
                        output_gate,
                        ..Default::default()
                    }
                }
                other => {
                    rules.wrong_kind(&format!("{table}.kind"), other.kind(), "softmax");
                    continue;
                }
            };
            check_heads(family, &table, &heads, epsilon, rules);
            let (key, all) = (format!("{table}.n_kv_heads"), "number of heads of keys");
            let n = heads.n_kv_heads.unwrap_or(config.n_heads);
            layers::check_same(&mut shared.n_kv_heads, &key, n, all, rules);
        }
        shared
    }
}

/// Requires scaled dot products and the family's norms of the attention in the TOML's `table`.
fn check_heads(
    family: &FamilyDefaults,
    table: &str,
    heads: &softmax::Config,
    epsilon: f64,
    rules: &mut Rules,
) {
    let key = |name: &str| format!("{table}.{name}");
    let scaled = heads.score == Score::ScaledDot;
    rules.check(scaled, &key("score"), "another score", "\"scaled_dot\"");
    requirements::check_plain_heads(table, heads.sink, heads.output_gate, rules);
    let norms =
        if family.qk_norm { "normalised queries and keys" } else { "no norm of queries and keys" };
    let same = heads.qk_norm == family.qk_norm;
    rules.check(same, &key("qk_norm"), &heads.qk_norm.to_string(), norms);
    if heads.qk_norm && family.qk_norm {
        let value = heads.qk_norm_epsilon;
        let required = format!("that of `model.norm`, {epsilon}");
        let same = value == epsilon;
        rules.check(same, &key("qk_norm_epsilon"), &value.to_string(), &required);
        let over = heads.qk_norm_over;
        if over != NormOver::Head {
            rules.wrong_kind(&key("qk_norm_over"), over.name(), NormOver::Head.name());
        }
    }
}

/// Requires the same rotary positions in all layers; writes them in both spellings. Both layouts can be written: see
/// [`pairs`].
fn rotary_keys(config: &ModelConfig, rules: &mut Rules) -> Map<String, Value> {
    let first = config.position_of(0);
    for Layer { position: (table, position), .. } in layers::layers(config) {
        rules.check(position == first, &table, "not the first layer's", "one for all layers");
    }
    let PositionConfig::Rotary(rotary) = first else {
        rules.wrong_kind("model.position.kind", first.kind(), "rotary");
        return Map::new();
    };
    let table = write_rotary_table(rotary);
    let mut old = table.clone();
    if let Some(old) = old.as_object_mut() {
        old.shift_remove("rope_theta");
    }
    let old = if rotary.scaling.is_none() { Value::Null } else { old };
    let keys = json!({ "rope_parameters": table, "rope_theta": rotary.base, "rope_scaling": old });
    keys.as_object().cloned().unwrap_or_default()
}

/// The value of `rope_parameters`.
pub(super) fn write_rotary_table(rotary: &rotary::Config) -> Value {
    let mut table = match &rotary.scaling {
        Scaling::None => json!({ "rope_type": "default" }),
        Scaling::Linear(Linear { factor }) => json!({ "rope_type": "linear", "factor": factor }),
        Scaling::Llama3(llama3) => json!({
            "rope_type": "llama3",
            "factor": llama3.factor,
            "low_freq_factor": llama3.low_freq_factor,
            "high_freq_factor": llama3.high_freq_factor,
            "original_max_position_embeddings": llama3.original_max_seq_len,
        }),
    };
    table["rope_theta"] = rotary.base.into();
    table
}

/// The names of all families. The classes of `transformers` rotate in the layout `half`.
fn pairs(config: &ModelConfig) -> Vec<Pair> {
    let layer = "model.layers.*";
    let rotated = |ours: &str, theirs: &str| {
        let pair =
            Pair::same(format!("layer.*.attention.{ours}"), format!("{layer}.self_attn.{theirs}"));
        match config.position_of(0) {
            PositionConfig::Rotary(rotary::Config { layout: Layout::Interleaved, .. }) => {
                pair.in_halves(config.head_dim())
            }
            _ => pair,
        }
    };
    vec![
        Pair::same("embedding.token", "model.embed_tokens"),
        Pair::same("layer.*.attention_residual.norm", format!("{layer}.input_layernorm")),
        rotated("query", "q_proj"),
        rotated("key", "k_proj"),
        Pair::same("layer.*.attention.value", format!("{layer}.self_attn.v_proj")),
        Pair::same("layer.*.attention.output", format!("{layer}.self_attn.o_proj")),
        rotated("query_norm", "q_norm"),
        rotated("key_norm", "k_norm"),
        Pair::same(
            "layer.*.feed_forward_residual.norm",
            format!("{layer}.post_attention_layernorm"),
        ),
        Pair::same("layer.*.feed_forward.gate", format!("{layer}.mlp.gate_proj")),
        Pair::same("layer.*.feed_forward.up", format!("{layer}.mlp.up_proj")),
        Pair::same("layer.*.feed_forward.down", format!("{layer}.mlp.down_proj")),
        Pair::same("final_norm", "model.norm"),
        Pair::same("output", "lm_head"),
    ]
}

/// A tied output shares the token table.
pub(super) fn aliases(config: &ModelConfig) -> Vec<Alias> {
    let alias = Alias { name: "lm_head.weight", of: "model.embed_tokens.weight", role: Role::Tied };
    config.tied_output.then_some(alias).into_iter().collect()
}
