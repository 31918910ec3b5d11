//! ModernBERT (Warner et al. 2024, <https://arxiv.org/abs/2412.13663>): `ModernBertForMaskedLM` and
//! `ModernBertForSequenceClassification`.
//!
//! Layers attend to all positions ("full") or to a window ("sliding"), each kind with a rotary base of its own.
//! Version 5 of `transformers` lists the kinds (`layer_types`, `rope_parameters`); version 4 has one full layer in
//! every `global_attn_every_n_layers` and the keys `global_rope_theta` and `local_rope_theta`. Both are read,
//! version 5's first, and both are written.
//!
//! The head is the same for masked tokens and for classes, which are read from the first state or from the mean.
//!
//! The first layer has no norm before its attention, as the embeddings are normalised.

use serde_json::{Map, Value, json};

use super::classification::{self, HeadClass};
use super::keys::Keys;
use super::rules::Rules;
use super::table::Pair;
use super::{Class, Head, HfError, HfResult, Sizes};
use super::{decoder, encoder};
use crate::attention::score::Score;
use crate::attention::{AttentionConfig, local};
use crate::choice::names::Named as _;
use crate::config::{EmbeddingConfig, LayerConfig, LmHeadConfig, ModelConfig, NormPlacement};
use crate::layers::classifier_head::{ClassifierHead, DenseHead};
use crate::layers::feed_forward::{Activation, FeedForwardConfig, GluConfig};
use crate::layers::norm::{LayerNormConfig, NormConfig};
use crate::models::read_out::ReadOut;
use crate::params::init::{InitConfig, Normal};
use crate::position::rotary::Layout;
use crate::position::{PositionConfig, rotary};

/// The bases of full and of sliding layers where a configuration names none.
const BASES: [f64; 2] = [160_000., 10_000.];
/// The window where a configuration names none, counted as `local_attention` is.
const LOCAL_ATTENTION: usize = 128;
const EVERY: usize = 3;
const TYPES: [&str; 2] = ["full_attention", "sliding_attention"];

pub(super) const CLASS: Class = Class {
    architecture: "ModernBertForMaskedLM",
    head: Head::MaskedLm,
    base: "model",
    roots: &["embeddings.", "layers.", "final_norm."],
    unused: &["rotary_emb", "position_ids"],
    read,
    write,
    pairs,
    aliases: |config| {
        encoder::aliases(config, ["model.embeddings.tok_embeddings.weight", "decoder.weight"], None)
    },
    token_types: None,
    classifier: Some(HeadClass {
        architecture: "ModernBertForSequenceClassification",
        read: read_head,
        write: write_head,
        tensors: &[["classifier.dense", "head.dense"], ["classifier.norm", "head.norm"]],
        output: "classifier",
    }),
};

/// The kind of one layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Full,
    Sliding,
}

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, Sizes)> {
    // How logits and losses are computed, a copy of `norm_eps`, and settings of the initialisation.
    for key in "sparse_prediction sparse_pred_ignore_index deterministic_flash_attn reference_compile \
                repad_logits_with_grad layer_norm_eps initializer_cutoff_factor position_embedding_type"
        .split_whitespace()
    {
        keys.ignore(key);
    }
    let n_layers = keys.size("num_hidden_layers", 22)?;
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
    let [base, local_base] = read_bases(keys)?;
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
        position: position(base),
        layers: read_layers(keys, n_layers, (local_base != base).then_some(local_base))?,
        lm_head: Some(head),
        norm: NormConfig::LayerNorm(LayerNormConfig {
            epsilon,
            bias: keys.flag("norm_bias", false)?,
        }),
        feed_forward: FeedForwardConfig::Glu(GluConfig { activation, d_ff }),
        init: InitConfig::Normal(Normal { std, scale_residual: false }),
        ..ModelConfig::default()
    };
    let sizes = Sizes {
        vocab_size: keys.size("vocab_size", 50_368)?,
        seq_len: max_seq_len,
        ..encoder::read_ids(keys, [Some(50_283), Some(50_281), Some(50_282)])?
    };
    Ok((config, sizes))
}

fn position(base: f64) -> PositionConfig {
    PositionConfig::Rotary(rotary::Config { base, layout: Layout::Half, ..Default::default() })
}

/// What `classifier_pooling` can say.
const READ_OUTS: [ReadOut; 2] = [ReadOut::Cls, ReadOut::Mean];

/// The head of a classifier, which is that of the masked language model with another output. The state is read before it.
fn read_head(keys: &mut Keys, config: &ModelConfig) -> HfResult<(ClassifierHead, ReadOut)> {
    let pooling = keys.word("classifier_pooling", ReadOut::Cls.name())?;
    let read_out = READ_OUTS.into_iter().find(|known| known.name() == pooling);
    let read_out = read_out.ok_or_else(|| {
        let why = "expected \"cls\" or \"mean\"";
        keys.unsupported("classifier_pooling", &format!("\"{pooling}\""), why)
    })?;
    let head = DenseHead {
        activation: config.lm_head.clone().unwrap_or_default().activation.into(),
        bias: config.bias,
        norm: true,
        input_dropout: false,
        dropout: Some(keys.number("classifier_dropout", 0.)?),
    };
    Ok((ClassifierHead::Dense(head), read_out))
}

fn write_head(
    head: &ClassifierHead,
    read_out: ReadOut,
    config: &ModelConfig,
    rules: &mut Rules,
) -> Map<String, Value> {
    let Some(head) = classification::dense(head, rules) else { return Map::new() };
    let DenseHead { activation, bias, norm, input_dropout, dropout } = *head;
    rules.switch("model.classifier.bias", bias, config.bias, "`model.bias` in the head, too");
    rules.switch("model.classifier.norm", norm, true, "a norm in the head");
    if input_dropout {
        rules.note("in training, transformers has no dropout before the dense map of the head");
    }
    let known = activation.of_blocks();
    let has = "an activation that networks of the blocks have, too";
    rules.check(known.is_some(), "model.classifier.activation", "\"tanh\"", has);
    let (word, reads) = (format!("\"{}\"", read_out.name()), READ_OUTS.contains(&read_out));
    rules.check(reads, "task.read_out", &word, "\"cls\" or \"mean\"");
    let map = json!({
        "classifier_activation": encoder::activation(known.unwrap_or(Activation::Gelu)),
        "classifier_pooling": read_out.name(),
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

/// The rotary bases of full and of sliding layers.
fn read_bases(keys: &mut Keys) -> HfResult<[f64; 2]> {
    let full = keys.number("global_rope_theta", BASES[0])?;
    let has_no_local = keys.is_null("local_rope_theta");
    let sliding = keys.number("local_rope_theta", if has_no_local { full } else { BASES[1] })?;
    let read = |tables: &mut Keys| -> HfResult<[f64; 2]> {
        let mut read = |kind, base| -> HfResult<f64> {
            let read = tables.table(kind, |table| read_base(table, base))?;
            Ok(read.unwrap_or(base))
        };
        Ok([read(TYPES[0], full)?, read(TYPES[1], sliding)?])
    };
    Ok(keys.table("rope_parameters", read)?.unwrap_or([full, sliding]))
}

/// The rotary base of one kind of layer, in the spelling of version 5.
fn read_base(table: &mut Keys, base: f64) -> HfResult<f64> {
    let rotary = decoder::rotary_table(table, base)?;
    if rotary.scaling.is_none() {
        return Ok(rotary.base);
    }
    let kind = format!("\"{}\"", rotary.scaling.kind());
    Err(table.unsupported(
        "rope_type",
        &kind,
        "version 4 of transformers has no scaling for this class",
    ))
}

/// The entries of `[[model.layers]]`: the shortest pattern that repeats to the kinds of all layers.
fn read_layers(
    keys: &mut Keys,
    n_layers: usize,
    local_base: Option<f64>,
) -> HfResult<Vec<LayerConfig>> {
    let window = keys.size("local_attention", LOCAL_ATTENTION)? / 2 + 1;
    let kinds = read_kinds(keys, n_layers)?;
    if kinds.iter().all(|&kind| kind == Layer::Full) {
        return Ok(Vec::new());
    }
    let entry = |&kind: &Layer| match kind {
        Layer::Full => LayerConfig::default(),
        Layer::Sliding => LayerConfig {
            attention: Some(AttentionConfig::Local(local::Config { window, ..Default::default() })),
            position: local_base.map(position),
        },
    };
    let repeats = |n: &usize| kinds.iter().enumerate().all(|(i, kind)| *kind == kinds[i % n]);
    let period = (1..n_layers).find(repeats).unwrap_or(n_layers);
    Ok(kinds[..period].iter().map(entry).collect())
}

/// The kind of each layer.
fn read_kinds(keys: &mut Keys, n_layers: usize) -> HfResult<Vec<Layer>> {
    let every = keys.size("global_attn_every_n_layers", EVERY)?.max(1);
    let Some(names) = keys.words("layer_types")? else {
        let kind = |i: usize| if i.is_multiple_of(every) { Layer::Full } else { Layer::Sliding };
        return Ok((0..n_layers).map(kind).collect());
    };
    if names.len() != n_layers {
        let message = format!(
            "`layer_types` has {} entries, but `num_hidden_layers` = {n_layers}",
            names.len()
        );
        return Err(HfError::Config(message));
    }
    let kind = |name: String| match TYPES.iter().position(|known| *known == name) {
        Some(0) => Ok(Layer::Full),
        Some(_) => Ok(Layer::Sliding),
        None => Err(HfError::Config(format!(
            "`layer_types` contains \"{name}\", expected one of {}",
            TYPES.join(", ")
        ))),
    };
    names.into_iter().map(kind).collect()
}

fn write(config: &ModelConfig, sizes: &Sizes, rules: &mut Rules) -> Map<String, Value> {
    let head = check(config, sizes, rules);
    let (activation, d_ff) = encoder::glu(config, rules);
    let (epsilon, norm_bias) = check_norm(config, rules);
    let layers = Layers::check(config, rules);
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("vocab_size", sizes.vocab_size.into());
    put("hidden_size", config.d_model.into());
    put("num_hidden_layers", config.n_layers.into());
    put("num_attention_heads", config.n_heads.into());
    put("intermediate_size", d_ff.into());
    put("hidden_activation", encoder::activation(activation).into());
    put("max_position_embeddings", config.max_seq_len.unwrap_or(sizes.seq_len).into());
    if let Some(head) = head {
        put("classifier_activation", encoder::activation(head.activation).into());
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
    put("initializer_range", encoder::initial_std(config).into());
    put("tie_word_embeddings", config.tied_output.into());
    map.extend(layers.write(rules));
    map.extend(encoder::ids(sizes));
    map.insert("cls_token_id".to_owned(), sizes.bos_id.into());
    map.insert("sep_token_id".to_owned(), sizes.eos_id.into());
    map
}

/// Requires all but the layers' attention, network and norms; the settings of a language-model head.
fn check(config: &ModelConfig, sizes: &Sizes, rules: &mut Rules) -> Option<LmHeadConfig> {
    rules.switch("model.causal", config.causal, false, "bidirectional attention");
    let pre = config.norm_placement == NormPlacement::Pre;
    rules.check(pre, "model.norm_placement", "\"post\"", "\"pre\"");
    let has = "no norm before the first attention";
    rules.switch("model.first_norm", config.first_norm, false, has);
    rules.switch("model.residual", config.residual, true, "residual connections");
    let EmbeddingConfig { scale, norm } = config.embedding;
    rules.switch("model.embedding.scale", scale, false, "unscaled embeddings");
    rules.switch("model.embedding.norm", norm, true, "normalised embeddings");
    encoder::check_one_width(config, rules);
    rules.switch("model.scale_output", config.scale_output, false, "an unscaled output");
    let types = sizes.n_token_types.to_string();
    rules.check(sizes.n_token_types == 0, "the number of token types", &types, "no token types");
    let head = rules.lm_head(config);
    if let Some(head) = &head {
        rules.switch("model.lm_head.transform", head.transform, true, "a transform in the head");
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

/// The kinds of all layers, and what the layers of a kind share.
struct Layers {
    kinds: Vec<Layer>,
    /// Of full and of sliding layers.
    bases: [Option<f64>; 2],
    window: Option<usize>,
}

impl Layers {
    /// Requires softmax or local attention, and rotary positions with one base for each of them.
    fn check(config: &ModelConfig, rules: &mut Rules) -> Self {
        let mut layers = Self { kinds: Vec::new(), bases: [None; 2], window: None };
        let period = config.layers.len().max(1);
        for i in 0..period.min(config.n_layers) {
            let entry = config.layers.get(i);
            let table = |name: &str, is_own: bool| {
                if is_own { format!("model.layers[{i}].{name}") } else { format!("model.{name}") }
            };
            let own = entry.is_some_and(|entry| entry.attention.is_some());
            let attention = config.attention_of(i);
            let kind = layers.check_attention(&table("attention", own), attention, config, rules);
            layers.kinds.push(kind);
            let own = entry.is_some_and(|entry| entry.position.is_some());
            layers.check_base(kind, &table("position", own), config.position_of(i), rules);
        }
        // The entries repeat.
        let rest = (period..config.n_layers).map(|i| layers.kinds[i % period]).collect::<Vec<_>>();
        layers.kinds.extend(rest);
        layers
    }

    fn check_attention(
        &mut self,
        table: &str,
        attention: &AttentionConfig,
        config: &ModelConfig,
        rules: &mut Rules,
    ) -> Layer {
        let AttentionConfig::Local(local::Config { window, n_kv_heads, qk_norm, .. }) = attention
        else {
            let score = encoder::softmax_score(table, attention, config, rules);
            let scaled = score.is_none_or(|score| score == Score::ScaledDot);
            rules.check(scaled, &format!("{table}.score"), "another score", "\"scaled_dot\"");
            return Layer::Full;
        };
        let heads = n_kv_heads.is_none_or(|n| n == config.n_heads);
        let has = "one head of keys per head of queries";
        rules.check(heads, &format!("{table}.n_kv_heads"), "set", has);
        let has = "queries and keys without a norm";
        rules.switch(&format!("{table}.qk_norm"), *qk_norm, false, has);
        let first = *self.window.get_or_insert(*window);
        let has = format!("one window for all layers, {first}");
        rules.check(*window == first, &format!("{table}.window"), &window.to_string(), &has);
        Layer::Sliding
    }

    fn check_base(
        &mut self,
        kind: Layer,
        table: &str,
        position: &PositionConfig,
        rules: &mut Rules,
    ) {
        let key = |name: &str| format!("{table}.{name}");
        let PositionConfig::Rotary(rotary) = position else {
            return rules.wrong_kind(&key("kind"), position.kind(), "rotary");
        };
        let half = rotary.layout == Layout::Half;
        rules.check(half, &key("layout"), "\"interleaved\"", "\"half\"");
        let unscaled = rotary.scaling.is_none();
        let scaling = format!("\"{}\"", rotary.scaling.kind());
        rules.check(unscaled, &key("scaling.kind"), &scaling, "\"none\"");
        let first = *self.bases[kind as usize].get_or_insert(rotary.base);
        let has = format!("one base for all layers of a kind, {first}");
        rules.check(rotary.base == first, &key("base"), &rotary.base.to_string(), &has);
    }

    fn write(&self, rules: &mut Rules) -> Map<String, Value> {
        let [full, sliding] = self.bases;
        let one = full.or(sliding);
        let [full, sliding] = [full, sliding].map(|base| base.or(one).unwrap_or(BASES[0]));
        let names: Vec<_> = self.kinds.iter().map(|&kind| TYPES[kind as usize]).collect();
        let is_full = |i: usize| self.kinds[i] == Layer::Full;
        // A short stack suits several periods; the usual one comes first.
        let every = std::iter::once(EVERY)
            .chain(1..=self.kinds.len())
            .find(|every| (0..self.kinds.len()).all(|i| is_full(i) == i.is_multiple_of(*every)));
        if every.is_none() {
            rules.note("transformers 4 cannot load it: the pattern of its layers is not one full layer in every n");
        }
        let theta = |base: f64| json!({ "rope_type": "default", "rope_theta": base });
        let map = json!({
            "layer_types": names,
            "global_attn_every_n_layers": every.unwrap_or(1),
            "local_attention": self.window.map_or(LOCAL_ATTENTION, |window| 2 * (window.max(1) - 1)),
            "rope_parameters": { TYPES[0]: theta(full), TYPES[1]: theta(sliding) },
            "global_rope_theta": full,
            "local_rope_theta": sliding,
        });
        map.as_object().cloned().unwrap_or_default()
    }
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
    use super::super::{Family, describe, express_as};
    use super::*;

    fn config() -> Value {
        json!({
            "model_type": "modernbert", "hidden_size": 30, "num_attention_heads": 5, "num_hidden_layers": 7,
        })
    }

    /// Of layers 0, 1, …: whether each is full.
    fn full(config: &ModelConfig) -> Vec<bool> {
        let is_full = |i| matches!(config.attention_of(i), AttentionConfig::Softmax(_));
        (0..config.n_layers).map(is_full).collect()
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
    fn layers_repeat_with_the_shortest_period() -> HfResult<()> {
        let described = describe(&config().to_string())?;
        assert_eq!(described.config.layers.len(), 3);
        assert_eq!(full(&described.config), [true, false, false, true, false, false, true]);
        let all = describe(&changed(&config(), &[("global_attn_every_n_layers", json!(1))]))?;
        assert_eq!(all.config.layers, []);

        let mut types = vec!["sliding_attention"; 7];
        types[5] = "full_attention";
        let listed = describe(&changed(&config(), &[("layer_types", json!(types))]))?;
        assert_eq!(listed.config.layers.len(), 6);
        assert_eq!(full(&listed.config), [false, false, false, false, false, true, false]);
        let written = express_as(Family::ModernBert, &listed.config, &listed.sizes)?;
        assert!(written.notes[0].contains("transformers 4 cannot load it"), "{:?}", written.notes);
        assert_eq!(describe(&Value::Object(written.config).to_string())?.config, listed.config);
        Ok(())
    }

    #[test]
    fn bases_are_those_of_either_version() -> HfResult<()> {
        let bases = |changes: &[(&str, Value)]| -> HfResult<[f64; 2]> {
            let config = describe(&changed(&config(), changes))?.config;
            Ok([0, 1].map(|i| match config.position_of(i) {
                PositionConfig::Rotary(rotary) => rotary.base,
                other => panic!("{other:?}"),
            }))
        };
        let theta = |theta: f64| json!({ "rope_type": "default", "rope_theta": theta });
        let both = json!({ "full_attention": theta(7.), "sliding_attention": theta(5.) });
        assert_eq!(bases(&[])?, BASES);
        assert_eq!(bases(&[("global_rope_theta", json!(7.0))])?, [7., BASES[1]]);
        assert_eq!(bases(&[("local_rope_theta", json!(null))])?, [BASES[0]; 2]);
        assert_eq!(
            bases(&[("rope_parameters", both), ("local_rope_theta", json!(3.0))])?,
            [7., 5.]
        );
        Ok(())
    }

    #[test]
    fn all_faults_are_listed_by_their_toml_keys() -> HfResult<()> {
        let described = describe(&config().to_string())?;
        let other = AttentionConfig::default_of("linear").expect("a kind");
        let window = AttentionConfig::Local(local::Config { window: 3, ..Default::default() });
        let layer = |attention| LayerConfig { attention: Some(attention), position: None };
        let config = ModelConfig {
            first_norm: true,
            position: PositionConfig::Rotary(rotary::Config::default()),
            feed_forward: FeedForwardConfig::None,
            layers: vec![layer(other), described.config.layers[1].clone(), layer(window)],
            ..described.config
        };
        let expected = [
            "model.first_norm",
            "model.feed_forward.kind",
            "model.layers[0].attention.kind",
            "model.position.layout",
            "model.layers[2].attention.window",
        ];
        assert_eq!(reasons(Family::ModernBert, &config, &described.sizes), expected);
        Ok(())
    }
}
