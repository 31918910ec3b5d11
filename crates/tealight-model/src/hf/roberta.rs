//! RoBERTa (Liu et al. 2019, <https://arxiv.org/abs/1907.11692>): `RobertaForMaskedLM`
//! and `RobertaForSequenceClassification`.
//!
//! Positions count tokens other than padding, from `pad_token_id` + 1 on, so the table has
//! `pad_token_id` + 1 rows more than the longest sequence has positions. The head always uses the exact
//! GELU, whatever the value of `hidden_act`.

use super::class::{self, Class};
use super::classification::{DenseOfFirst, HeadClass, LinearOfEach};
use super::encoder::{self, FamilyKeys};
use super::ids::SpecialIds;
use super::keys::Keys;
use super::rules::Rules;
use super::table::Pair;
use super::{HfError, HfResult, requirements};
use crate::config::{LmHeadConfig, ModelConfig};
use crate::layers::classifier_head::HeadActivation;
use crate::layers::feed_forward::Activation;
use crate::models::masked_lm::MaskedLmSpec;
use crate::models::spec::ModelSpec;
use crate::position::{PositionConfig, learned};

const KEYS: FamilyKeys =
    FamilyKeys { vocab_size: 50_265, ids: [Some(1), Some(0), Some(2)], ..encoder::BERT };

const HEAD: DenseOfFirst = DenseOfFirst {
    activation: Some(HeadActivation::Tanh),
    input_dropout: true,
    dropout: Some(("classifier_dropout", None)),
};

const TAGS: LinearOfEach = LinearOfEach { dropout: Some("classifier_dropout") };

pub(super) const CLASS: Class = Class {
    architecture: "RobertaForMaskedLM",
    has: class::is_encoder,
    base: "roberta",
    roots: &["embeddings.", "encoder.", "pooler."],
    unused: &["pooler", "position_ids", "token_type_ids"],
    read,
    write: |(config, spec, ids), rules| {
        let blocks = encoder::check(config, rules);
        requirements::check_softmax(config, rules);
        let offset = check_positions(config, ids.pad, rules);
        let head = rules.lm_head(config);
        let gelu = head.is_none_or(|head| head.activation == Activation::Gelu);
        rules.check(gelu, "model.lm_head.activation", "another activation", "\"gelu\"");
        let n_rows =
            config.max_seq_len.or(spec.seq_len()).unwrap_or_default().saturating_add(offset);
        let config = ModelConfig { max_seq_len: Some(n_rows), ..config.clone() };
        encoder::write(&KEYS, &blocks, (&config, spec, ids))
    },
    pairs: |_| {
        let head = [
            Pair::same("lm_head.dense", "lm_head.dense"),
            Pair::same("lm_head.norm", "lm_head.layer_norm"),
            Pair::same("output.weight", "lm_head.decoder.weight"),
            Pair::same("output.bias", "lm_head.bias"),
        ];
        encoder::pairs("roberta").into_iter().chain(head).collect()
    },
    arranged: None,
    aliases: |config| {
        let weights = ["roberta.embeddings.word_embeddings.weight", "lm_head.decoder.weight"];
        encoder::aliases(config, weights, Some(["lm_head.bias", "lm_head.decoder.bias"]))
    },
    token_types: Some("roberta.embeddings.token_type_embeddings.weight"),
    heads: &[
        HeadClass {
            architecture: "RobertaForSequenceClassification",
            is_of_tokens: false,
            read: |keys, config| HEAD.read(keys, config),
            write: |head, rules| HEAD.write(head, rules),
            tensors: &[["classifier.dense", "classifier.dense"]],
            output: "classifier.out_proj",
        },
        HeadClass::linear_of_each(
            "RobertaForTokenClassification",
            |keys, config| TAGS.read(keys, config),
            |head, rules| TAGS.write(head, rules),
        ),
    ],
};

fn read(keys: &mut Keys) -> HfResult<(ModelConfig, ModelSpec, SpecialIds)> {
    let (config, spec, ids) = encoder::read(keys, &KEYS)?;
    let Some(pad_id) = spec.pad_id else {
        let message = "`pad_token_id` = null is not supported: positions are counted from it";
        return Err(HfError::Config(message.to_owned()));
    };
    let (rows, offset) = (spec.seq_len, pad_id as usize + 1);
    let seq_len = rows.checked_sub(offset).filter(|&len| len > 0).ok_or_else(|| {
        HfError::Config(format!(
            "`max_position_embeddings` = {rows} must be more than {offset}: with \
             `pad_token_id` = {pad_id}, so many rows are not positions"
        ))
    })?;
    let std = requirements::initial_std(&config);
    let learned = learned::Config { std, offset, skip_padding: true };
    let config = ModelConfig {
        max_seq_len: Some(seq_len),
        position: PositionConfig::Learned(learned),
        lm_head: Some(LmHeadConfig::default()),
        ..config
    };
    Ok((config, ModelSpec::MaskedLm(MaskedLmSpec { seq_len, ..spec }), ids))
}

/// Requires positions that skip padding and begin at the padding id plus one; returns that row.
fn check_positions(config: &ModelConfig, pad_id: Option<u32>, rules: &mut Rules) -> usize {
    let learned = requirements::learned_position(config, rules);
    let key = "model.position.skip_padding";
    rules.require_on(key, learned.skip_padding, "positions that skip padding");
    let from_padding = pad_id.is_some_and(|id| id as usize + 1 == learned.offset);
    let value = format!("{} with the padding id {:?}", learned.offset, pad_id);
    let has = "the padding id plus one";
    rules.check(from_padding, "model.position.offset", &value, has);
    learned.offset
}
