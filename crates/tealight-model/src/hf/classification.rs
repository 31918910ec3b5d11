//! `…ForSequenceClassification`: the class of a family with a classification head, and what its outputs mean.
//!
//! ```text
//! BERT            bert.pooler.dense, tanh      dropout     classifier
//! RoBERTa         dropout, classifier.dense, tanh,         dropout, classifier.out_proj
//! DistilBERT      pre_classifier, relu         dropout     classifier
//! Nyströmformer   dropout, classifier.dense, hidden_act,   dropout, classifier.out_proj
//! ModernBERT      head.dense, classifier_activation, head.norm,  dropout, classifier
//! ViT                                                            classifier
//! ```
//!
//! All of them read the first position; ModernBERT may read the mean (`classifier_pooling`).
//! [`classifier_head`](crate::classifier_head) has the formula.

use serde_json::{Map, Value};

use super::keys::Keys;
use super::rules::Rules;
use super::table::Pair;
use super::{HfError, HfResult};
use crate::choice::names::{Named as _, names};
use crate::config::ModelConfig;
use crate::layers::classifier_head::{ClassifierHead, DenseHead, HeadActivation};
use crate::layers::feed_forward::{FeedForwardConfig, GluConfig, MlpConfig};
use crate::models::read_out::ReadOut;

/// The number of labels that a `config.json` without names has.
const DEFAULT_LABELS: usize = 2;

names! {
    /// `problem_type`: what the outputs of a classifier are.
    pub enum ProblemType {
        /// Scores of classes, of which one is right.
        "single_label_classification" => SingleLabel,
        /// Scores of labels, of which any number is right.
        "multi_label_classification" => MultiLabel,
        /// Numbers.
        "regression" => Regression,
    }
}

/// What the outputs of a classifier mean.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classification {
    /// The label of each output: `id2label`.
    pub labels: Vec<String>,
    /// What they are; `None` leaves it to the first labels that the model is trained on.
    pub problem_type: Option<ProblemType>,
    /// The hidden state that the head maps.
    pub read_out: ReadOut,
}

/// The class of a family that has a classification head.
pub(super) struct HeadClass {
    pub(super) architecture: &'static str,
    /// The head, and what it reads.
    pub(super) read: fn(&mut Keys, &ModelConfig) -> HfResult<(ClassifierHead, ReadOut)>,
    /// The keys of the head. Its faults are recorded.
    pub(super) write: fn(&ClassifierHead, ReadOut, &ModelConfig, &mut Rules) -> Map<String, Value>,
    /// The names of what precedes the output, here and in the file.
    pub(super) tensors: &'static [[&'static str; 2]],
    /// The name of the output in the file.
    pub(super) output: &'static str,
}

/// A head of a dense map and an activation that reads the first position.
pub(super) struct DenseOfFirst {
    /// That of the blocks if `None`.
    pub(super) activation: Option<HeadActivation>,
    pub(super) input_dropout: bool,
    /// The key of its dropout rate, and the rate without the key. `None` stands for the rate of the model.
    pub(super) dropout: Option<(&'static str, Option<f64>)>,
}

impl HeadClass {
    pub(super) fn pairs(&self) -> impl Iterator<Item = Pair> {
        let tensors = self.tensors.iter().copied().chain([["classifier", self.output]]);
        tensors.map(|[ours, theirs]| Pair::same(ours, theirs))
    }

    /// Whether a file with a tensor of this name has the head.
    pub(super) fn is_output(&self, tensor: &str) -> bool {
        tensor.strip_prefix(self.output) == Some(".weight")
    }

    /// Reads the head into `config`, and what its outputs mean.
    pub(super) fn describe(
        &self,
        keys: &mut Keys,
        config: &mut ModelConfig,
    ) -> HfResult<Classification> {
        let (head, read_out) = (self.read)(keys, config)?;
        config.classifier = Some(head);
        // Only a language model has this head.
        config.lm_head = None;
        Ok(Classification { labels: labels(keys)?, problem_type: problem_type(keys)?, read_out })
    }

    /// The keys of the head and of the labels. Faults of the head are recorded.
    pub(super) fn express(
        &self,
        config: &ModelConfig,
        outputs: &Classification,
        rules: &mut Rules,
    ) -> Map<String, Value> {
        let head = config.classifier.clone().unwrap_or_default();
        let mut map = (self.write)(&head, outputs.read_out, config, rules);
        let labels = || outputs.labels.iter().enumerate();
        let by_id: Map<_, _> =
            labels().map(|(id, label)| (id.to_string(), label.as_str().into())).collect();
        let by_label: Map<_, _> = labels().map(|(id, label)| (label.clone(), id.into())).collect();
        map.insert("id2label".to_owned(), by_id.into());
        map.insert("label2id".to_owned(), by_label.into());
        if let Some(problem_type) = outputs.problem_type {
            map.insert("problem_type".to_owned(), problem_type.name().into());
        }
        map
    }
}

impl DenseOfFirst {
    fn activation(&self, config: &ModelConfig) -> HeadActivation {
        let of_blocks = if let FeedForwardConfig::Mlp(MlpConfig { activation, .. })
        | FeedForwardConfig::Glu(GluConfig { activation, .. }) =
            config.feed_forward
        {
            activation.into()
        } else {
            DenseHead::default().activation
        };
        self.activation.unwrap_or(of_blocks)
    }

    pub(super) fn read(
        &self,
        keys: &mut Keys,
        config: &ModelConfig,
    ) -> HfResult<(ClassifierHead, ReadOut)> {
        let dropout = match self.dropout {
            Some((key, default)) => keys.optional_number(key)?.or(default),
            None => None,
        };
        let (activation, input_dropout) = (self.activation(config), self.input_dropout);
        let head = DenseHead { activation, input_dropout, dropout, ..DenseHead::default() };
        Ok((ClassifierHead::Dense(head), ReadOut::Cls))
    }

    pub(super) fn write(
        &self,
        head: &ClassifierHead,
        read_out: ReadOut,
        config: &ModelConfig,
        rules: &mut Rules,
    ) -> Map<String, Value> {
        let Some(head) = dense(head, rules) else { return Map::new() };
        let DenseHead { activation, bias, norm, input_dropout, dropout } = *head;
        let first = read_out == ReadOut::Cls;
        rules.check(first, "task.read_out", &format!("\"{}\"", read_out.name()), "\"cls\"");
        let wanted = self.activation(config);
        let [value, required] = [activation, wanted].map(|one| format!("\"{}\"", one.name()));
        rules.check(activation == wanted, "model.classifier.activation", &value, &required);
        rules.require_on("model.classifier.bias", bias, "a bias of the dense map");
        rules.require_off("model.classifier.norm", norm, "a head without a norm");
        if input_dropout != self.input_dropout {
            rules.note("in training, transformers has dropout at other places of the head");
        }
        let mut map = Map::new();
        match self.dropout {
            Some((key, default)) => {
                let rate = dropout.or(default.map(|_| config.dropout));
                map.insert(key.to_owned(), rate.into());
            }
            None if dropout.is_some_and(|rate| rate != config.dropout) => {
                rules.note("in training, transformers has `model.dropout` in the head, too");
            }
            None => {}
        }
        map
    }
}

/// Requires a dense map in the head.
pub(super) fn dense<'a>(head: &'a ClassifierHead, rules: &mut Rules) -> Option<&'a DenseHead> {
    match head {
        ClassifierHead::Dense(dense) => Some(dense),
        ClassifierHead::Linear => {
            rules.wrong_kind("model.classifier.kind", head.kind(), "dense");
            None
        }
    }
}

/// The names of the outputs, in their order.
fn labels(keys: &mut Keys) -> HfResult<Vec<String>> {
    let n = keys.optional_size("num_labels")?;
    let Some(named) = keys.object("id2label")? else {
        return Ok((0..n.unwrap_or(DEFAULT_LABELS)).map(unnamed).collect());
    };
    let mut labels = Vec::with_capacity(named.len());
    for id in 0..named.len() {
        let Some(Value::String(label)) = named.get(&id.to_string()) else {
            let rule =
                format!("must have a name for each of the ids \"0\" to \"{}\"", named.len() - 1);
            return Err(HfError::Config(format!("`id2label` {rule}; \"{id}\" has none")));
        };
        labels.push(label.clone());
    }
    match n {
        Some(n) if n != labels.len() => Err(HfError::Config(format!(
            "`num_labels` = {n}, but `id2label` has {}: versions of transformers disagree on which of them is used",
            labels.len()
        ))),
        _ if labels.is_empty() => Err(HfError::Config("`id2label` is empty".to_owned())),
        _ => Ok(labels),
    }
}

/// The name that transformers gives to an output without a name.
fn unnamed(id: usize) -> String {
    format!("LABEL_{id}")
}

fn problem_type(keys: &mut Keys) -> HfResult<Option<ProblemType>> {
    let word = keys.word("problem_type", "")?;
    if word.is_empty() {
        return Ok(None);
    }
    let known = ProblemType::ALL.iter().copied().find(|known| known.name() == word);
    known.map(Some).ok_or_else(|| {
        let known = ProblemType::KINDS.iter().map(|kind| kind.name).collect::<Vec<_>>().join(", ");
        HfError::Config(format!("`problem_type` = \"{word}\" is unknown, expected one of {known}"))
    })
}
