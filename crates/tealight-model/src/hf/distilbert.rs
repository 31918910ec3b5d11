//! DistilBERT (Sanh et al. 2019, <https://arxiv.org/abs/1910.01108>): `DistilBertForMaskedLM`
//! and `DistilBertForSequenceClassification`.
//!
//! BERT without token types, with other keys and tensor names, and a fixed ε of 10⁻¹².

use crate::models::spec::ModelSpec;
use serde_json::{Map, Value};

use super::class::{self, Class, Model};
use super::classification::{DenseOfFirst, HeadClass, LinearOfEach};
use super::encoder::{self, FamilyKeys};
use super::ids::SpecialIds;
use super::keys::Keys;
use super::rules::Rules;
use super::table::Pair;
use super::{HfResult, requirements};
use crate::config::ModelConfig;
use crate::layers::classifier_head::HeadActivation;

const EPSILON: f64 = 1e-12;

const KEYS: FamilyKeys = FamilyKeys {
    d_model: "dim",
    n_layers: ("n_layers", 6),
    n_heads: "n_heads",
    d_ff: "hidden_dim",
    activation: ("activation", "gelu"),
    dropout: ["dropout", "attention_dropout"],
    n_token_types: None,
    epsilon: (None, EPSILON),
    ..encoder::BERT
};

const HEAD: DenseOfFirst = DenseOfFirst {
    activation: Some(HeadActivation::Relu),
    input_dropout: false,
    dropout: Some(("seq_classif_dropout", Some(0.2))),
};

const TAGS: LinearOfEach = LinearOfEach { dropout: None };

pub(super) const CLASS: Class = Class {
    architecture: "DistilBertForMaskedLM",
    has: class::is_encoder,
    base: "distilbert",
    roots: &["embeddings.", "transformer."],
    unused: &["position_ids"],
    read,
    write,
    pairs,
    arranged: None,
    aliases: |config| {
        let weights = ["distilbert.embeddings.word_embeddings.weight", "vocab_projector.weight"];
        encoder::aliases(config, weights, None)
    },
    token_types: None,
    heads: &[
        HeadClass {
            architecture: "DistilBertForSequenceClassification",
            is_of_tokens: false,
            read: |keys, config| HEAD.read(keys, config),
            write: |head, rules| HEAD.write(head, rules),
            tensors: &[["classifier.dense", "pre_classifier"]],
            output: "classifier",
        },
        HeadClass::linear_of_each(
            "DistilBertForTokenClassification",
            |keys, config| {
                keys.ignore("seq_classif_dropout");
                TAGS.read(keys, config)
            },
            |head, rules| TAGS.write(head, rules),
        ),
    ],
};

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    // The first is the initialisation of a stored table; the others belong to other heads.
    for key in ["sinusoidal_pos_embds", "qa_dropout", "tie_weights_"] {
        keys.ignore(key);
    }
    let (config, spec, ids) = encoder::read(keys, &KEYS)?;
    Ok((config, ModelSpec::MaskedLm(spec), ids))
}

fn write((config, spec, ids): Model<'_>, rules: &mut Rules) -> Map<String, Value> {
    let blocks = encoder::check(config, rules);
    requirements::check_softmax(config, rules);
    requirements::check_positions_from(0, config, rules);
    encoder::check_one_activation(config, &blocks, rules);
    let epsilon = format!("{:e}", blocks.epsilon);
    rules.check(blocks.epsilon == EPSILON, "model.norm.epsilon", &epsilon, "1e-12");
    let types = spec.n_token_types().to_string();
    rules.check(spec.n_token_types() == 0, "the number of token types", &types, "no token types");
    encoder::write(&KEYS, &blocks, (config, spec, ids))
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
