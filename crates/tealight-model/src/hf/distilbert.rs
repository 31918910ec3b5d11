//! DistilBERT (Sanh et al. 2019, <https://arxiv.org/abs/1910.01108>): `DistilBertForMaskedLM`.
//!
//! BERT without token types, with other keys and tensor names, and a fixed ε of 10⁻¹².

use serde_json::{Map, Value};

use super::encoder::{self, Encoder};
use super::keys::Keys;
use super::rules::Rules;
use super::table::Pair;
use super::{Class, Head, HfResult, Sizes};
use crate::config::ModelConfig;

const EPSILON: f64 = 1e-12;

pub(super) const CLASS: Class = Class {
    architecture: "DistilBertForMaskedLM",
    head: Head::MaskedLm,
    base: "distilbert",
    roots: &["embeddings.", "transformer."],
    unused: &["position_ids"],
    read,
    write,
    pairs,
    aliases: |config| {
        let weights = ["distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"];
        encoder::aliases(config, weights, None)
    },
    zeros: |_, _| Vec::new(),
};

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, Sizes)> {
    encoder::read_common(keys)?;
    // The first is the initialisation of a stored table; the others belong to other heads.
    for key in ["sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_"] {
        keys.ignore(key);
    }
    let encoder = Encoder {
        d_model: keys.size("dim", 768)?,
        n_layers: keys.size("n_layers", 6)?,
        n_heads: keys.size("n_heads", 12)?,
        d_ff: keys.size("hidden_dim", 3072)?,
        max_seq_len: keys.size("max_position_embeddings", 512)?,
        activation: keys.activation("activation", "gelu")?,
        dropout: keys.dropout(&["dropout", "attention_dropout"])?,
        epsilon: EPSILON,
        std: keys.number("initializer_range", 0.02)?,
        tied_output: keys.flag("tie_word_embeddings", true)?,
    };
    let sizes = Sizes {
        vocab_size: keys.size("vocab_size", 30_522)?,
        n_token_types: 0,
        seq_len: encoder.max_seq_len,
        ..encoder::read_ids(keys, Some(0), None, None)?
    };
    Ok((encoder.config(), sizes))
}

fn write(config: &ModelConfig, sizes: &Sizes, rules: &mut Rules) -> Map<String, Value> {
    let encoder = Encoder::of(config, sizes, rules);
    encoder::check_softmax(config, rules);
    encoder::check_positions_from(0, config, rules);
    encoder::check_one_activation(config, &encoder, rules);
    let epsilon = format!("{:e}", encoder.epsilon);
    rules.check(encoder.epsilon == EPSILON, "model.norm.epsilon", &epsilon, "1e-12");
    let types = sizes.n_token_types.to_string();
    rules.check(sizes.n_token_types == 0, "the number of token types", &types, "no token types");
    let mut map = Map::new();
    let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
    put("vocab_size", sizes.vocab_size.into());
    put("dim", encoder.d_model.into());
    put("n_layers", encoder.n_layers.into());
    put("n_heads", encoder.n_heads.into());
    put("hidden_dim", encoder.d_ff.into());
    put("activation", encoder::activation(encoder.activation).into());
    put("dropout", encoder.dropout.into());
    put("attention_dropout", encoder.dropout.into());
    put("max_position_embeddings", encoder.max_seq_len.into());
    put("sinusoidal_pos_embds", false.into());
    put("initializer_range", encoder.std.into());
    put("tie_word_embeddings", encoder.tied_output.into());
    map.extend(encoder::ids(sizes));
    map
}

fn pairs(_: &ModelConfig) -> Vec<Pair> {
    let embedding = "distilbert.embeddings";
    let layer = "distilbert.transformer.layer.*";
    vec![
        Pair::same("embedding.token", format!("{embedding}.word_embeddings")),
        Pair::same("position", format!("{embedding}.position_embeddings")),
        Pair::same("embedding.norm", format!("{embedding}.LayerNorm")),
        Pair::same("layer.*.attention.query", format!("{layer}.attention.q_lin")),
        Pair::same("layer.*.attention.key", format!("{layer}.attention.k_lin")),
        Pair::same("layer.*.attention.value", format!("{layer}.attention.v_lin")),
        Pair::same("layer.*.attention.output", format!("{layer}.attention.out_lin")),
        Pair::same("layer.*.attention_residual.norm", format!("{layer}.sa_layer_norm")),
        Pair::same("layer.*.feed_forward.up", format!("{layer}.ffn.lin1")),
        Pair::same("layer.*.feed_forward.down", format!("{layer}.ffn.lin2")),
        Pair::same("layer.*.feed_forward_residual.norm", format!("{layer}.output_layer_norm")),
        Pair::same("lm_head.dense", "vocab_transform"),
        Pair::same("lm_head.norm", "vocab_layer_norm"),
        Pair::same("output", "vocab_projector"),
    ]
}
