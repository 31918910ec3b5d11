//! BERT (Devlin et al. 2019, <https://arxiv.org/abs/1810.04805>): `BertForMaskedLM` and
//! `BertForSequenceClassification`.

use super::class::{self, Class};
use super::classification::{DenseOfFirst, HeadClass, LinearOfEach};
use super::{encoder, requirements};
use crate::layers::classifier_head::HeadActivation;
use crate::models::spec::ModelSpec;

const HEAD: DenseOfFirst = DenseOfFirst {
    activation: Some(HeadActivation::Tanh),
    input_dropout: false,
    dropout: Some(("classifier_dropout", None)),
};

const TAGS: LinearOfEach = LinearOfEach { dropout: Some("classifier_dropout") };

pub(super) const CLASS: Class = Class {
    architecture: "BertForMaskedLM",
    has: class::is_encoder,
    base: "bert",
    roots: &["embeddings.", "encoder.", "pooler."],
    unused: &["pooler", "cls.seq_relationship", "position_ids", "token_type_ids"],
    read: |keys| {
        let (config, spec, ids) = encoder::read(keys, &encoder::BERT)?;
        Ok((config, ModelSpec::MaskedLm(spec), ids))
    },
    write: |(config, spec, ids), rules| {
        let blocks = encoder::check(config, rules);
        requirements::check_softmax(config, rules);
        requirements::check_positions_from(0, config, rules);
        encoder::check_one_activation(config, &blocks, rules);
        encoder::write(&encoder::BERT, &blocks, (config, spec, ids))
    },
    pairs: |_| encoder::pairs("bert").into_iter().chain(encoder::head_pairs()).collect(),
    arranged: None,
    aliases: |config| {
        let weights = ["bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"];
        let biases = ["cls.predictions.bias", "cls.predictions.decoder.bias"];
        encoder::aliases(config, weights, Some(biases))
    },
    token_types: Some("bert.embeddings.token_type_embeddings.weight"),
    heads: &[
        HeadClass {
            architecture: "BertForSequenceClassification",
            is_of_tokens: false,
            read: |keys, config| HEAD.read(keys, config),
            write: |head, rules| HEAD.write(head, rules),
            tensors: &[["classifier.dense", "bert.pooler.dense"]],
            output: "classifier",
        },
        HeadClass::linear_of_each(
            "BertForTokenClassification",
            |keys, config| TAGS.read(keys, config),
            |head, rules| TAGS.write(head, rules),
        ),
    ],
};
