//! `…ForSequenceClassification` and `…ForTokenClassification`: the classes of a family with a classification head, and
//! what their outputs mean.
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
//! All of them read the first position; ModernBERT may read the mean (`classifier_pooling`). Heads of tokens map each
//! position by `dropout, classifier`, ModernBERT's by its head of classes.
//! [`classifier_head`](crate::classifier_head) has the formula.

use serde_json::{Map, Value};

use super::keys::Keys;
use super::rules::Rules;
use super::shapes::Shapes;
use super::table::Pair;
use super::{HfError, HfResult};
use crate::choice::names::{Named as _, names};
use crate::config::{MAX_SIZE, ModelConfig};
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
    /// The hidden state that the head maps; `None`: each state, to a tag of its token.
    pub read_out: Option<ReadOut>,
}

/// A head, and what it reads: `None` for a head of tokens.
pub(super) type ReadHead = HfResult<(ClassifierHead, Option<ReadOut>)>;
/// What [`HeadClass::write`] gets.
pub(super) type HeadOf<'a> = (&'a ClassifierHead, Option<ReadOut>, &'a ModelConfig);

/// A class of a family that has a classification head.
pub(super) struct HeadClass {
    pub(super) architecture: &'static str,
    /// Whether it maps the state of each token, in place of one state of a text or a picture.
    pub(super) is_of_tokens: bool,
    pub(super) read: fn(&mut Keys, &ModelConfig) -> ReadHead,
    /// The keys of the head. Its faults are recorded.
    pub(super) write: fn(HeadOf<'_>, &mut Rules) -> Map<String, Value>,
    /// The names of what precedes the output, here and in the file.
    pub(super) tensors: &'static [[&'static str; 2]],
    /// The name of the output in the file.
    pub(super) output: &'static str,
}

impl HeadClass {
    /// A class whose head is a linear map of each token's state, `classifier`.
    pub(super) const fn linear_of_each(
        architecture: &'static str,
        read: fn(&mut Keys, &ModelConfig) -> ReadHead,
        write: fn(HeadOf<'_>, &mut Rules) -> Map<String, Value>,
    ) -> Self {
        Self { architecture, is_of_tokens: true, read, write, tensors: &[], output: "classifier" }
    }
}

/// A head of a dense map and an activation that reads the first position.
pub(super) struct DenseOfFirst {
    /// That of the blocks if `None`.
    pub(super) activation: Option<HeadActivation>,
    pub(super) input_dropout: bool,
    /// The key of its dropout rate, and the rate without the key. `None` stands for the rate of the model.
    pub(super) dropout: Option<(&'static str, Option<f64>)>,
}

/// A linear map of each state, whose dropout rate has the key `dropout`; without a key, it is that of the model.
pub(super) struct LinearOfEach {
    pub(super) dropout: Option<&'static str>,
}

impl HeadClass {
    pub(super) fn pairs(&self) -> impl Iterator<Item = Pair> {
        let tensors = self.tensors.iter().copied().chain([["classifier", self.output]]);
        tensors.map(|[ours, theirs]| Pair::same(ours, theirs))
    }

    /// The number of outputs that the files have, if they have the head and the number is one that may be allocated.
    pub(super) fn n_outputs(&self, tensors: &Shapes) -> Option<usize> {
        let rows = tensors.get(&format!("{}.weight", self.output))?.first().copied();
        rows.filter(|n| (1..=MAX_SIZE).contains(n))
    }

    /// Reads the head into `config`, and what its outputs mean.
    pub(super) fn describe(
        &self,
        keys: &mut Keys,
        config: &mut ModelConfig,
        tensors: &Shapes,
    ) -> HfResult<Classification> {
        let (head, read_out) = (self.read)(keys, config)?;
        config.classifier = Some(head);
        // Only a language model has this head.
        config.lm_head = None;
        let labels = labels(keys, self.n_outputs(tensors))?;
        Ok(Classification { labels, problem_type: problem_type(keys)?, read_out })
    }

    /// The keys of the head and of the labels. Faults of the head are recorded.
    pub(super) fn express(
        &self,
        config: &ModelConfig,
        outputs: &Classification,
        rules: &mut Rules,
    ) -> Map<String, Value> {
        let head = config.classifier.clone().unwrap_or_default();
        let mut map = (self.write)((&head, outputs.read_out, config), rules);
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

    pub(super) fn read(&self, keys: &mut Keys, config: &ModelConfig) -> ReadHead {
        let dropout = match self.dropout {
            Some((key, default)) => keys.optional_number(key)?.or(default),
            None => None,
        };
        let (activation, input_dropout) = (self.activation(config), self.input_dropout);
        let head = DenseHead { activation, input_dropout, dropout, ..DenseHead::default() };
        Ok((ClassifierHead::Dense(head), Some(ReadOut::Cls)))
    }

    pub(super) fn write(
        &self,
        (head, read_out, config): HeadOf<'_>,
        rules: &mut Rules,
    ) -> Map<String, Value> {
        let Some(head) = dense(head, rules) else { return Map::new() };
        let DenseHead { activation, bias, norm, input_dropout, dropout } = *head;
        require_first(read_out, rules);
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

impl LinearOfEach {
    pub(super) fn read(&self, keys: &mut Keys, config: &ModelConfig) -> ReadHead {
        let rate = self.dropout.map(|key| keys.optional_number(key)).transpose()?.flatten();
        if let Some(rate) = rate.filter(|&rate| rate != config.dropout) {
            keys.note(format!(
                "the dropout of the head is that of the model, {}, in place of {rate}",
                config.dropout
            ));
        }
        Ok((ClassifierHead::Linear, None))
    }

    pub(super) fn write(&self, (head, ..): HeadOf<'_>, rules: &mut Rules) -> Map<String, Value> {
        if *head != ClassifierHead::Linear {
            rules.wrong_kind("model.classifier.kind", head.kind(), "linear");
        }
        self.dropout.map(|key| (key.to_owned(), Value::Null)).into_iter().collect()
    }
}

/// Requires a head that reads the first position.
pub(super) fn require_first(read_out: Option<ReadOut>, rules: &mut Rules) {
    let word = read_out.map_or("", ReadOut::name);
    let first = read_out == Some(ReadOut::Cls);
    rules.check(first, "task.read_out", &format!("\"{word}\""), "\"cls\"");
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

/// The names of the outputs, in their order. The number of outputs is that of the weights if they are known, because
/// `transformers` leaves both keys at two labels unless they are set.
fn labels(keys: &mut Keys, in_weights: Option<usize>) -> HfResult<Vec<String>> {
    let stated = keys.optional_size("num_labels")?;
    let named = names_of_labels(keys)?;
    let Some(n) = in_weights else {
        return match (stated, named) {
            (n, None) => Ok((0..n.unwrap_or(DEFAULT_LABELS)).map(unnamed).collect()),
            (Some(n), Some(named)) if n != named.len() => Err(HfError::Config(format!(
                "`num_labels` = {n}, but `id2label` has {}: versions of transformers disagree on which of them is used",
                named.len()
            ))),
            (_, Some(named)) => Ok(named),
        };
    };
    let named = named.unwrap_or_default();
    let n_named = named.len();
    let is_made_up = named.iter().enumerate().all(|(id, label)| *label == unnamed(id));
    if n < n_named && !is_made_up {
        // The weights are refused by their shape.
        return Ok(named);
    }
    if n > n_named && !is_made_up {
        keys.note(format!(
            "`id2label` has {n_named} labels, but the weights have {n} outputs: the others are called {} to {}",
            unnamed(n_named),
            unnamed(n - 1)
        ));
    }
    Ok(named.into_iter().chain((n_named..n).map(unnamed)).take(n).collect())
}

/// `id2label`, in the order of the ids.
fn names_of_labels(keys: &mut Keys) -> HfResult<Option<Vec<String>>> {
    let Some(named) = keys.object("id2label")? else { return Ok(None) };
    let label = |id: usize| {
        if let Some(Value::String(label)) = named.get(&id.to_string()) {
            return Ok(label.clone());
        }
        let last = named.len() - 1;
        let rule = format!("must have a name for each of the ids \"0\" to \"{last}\"");
        Err(HfError::Config(format!("`id2label` {rule}; \"{id}\" has none")))
    };
    let labels = (0..named.len()).map(label).collect::<HfResult<Vec<_>>>()?;
    if labels.is_empty() {
        return Err(HfError::Config("`id2label` is empty".to_owned()));
    }
    Ok(Some(labels))
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
