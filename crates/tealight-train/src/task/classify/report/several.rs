//! The scores of a model that gives each held-out text any number of labels.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tealight_model::models::classifier::Classifier;

use super::super::Classify;
use super::super::data::Item;
use super::held_out;
use crate::error::Result;
use crate::inference::values;
use crate::task::class_scores::{ClassScore, Items, score_table};
use crate::task::metrics::by_name;
use crate::task::scores::{Counts, macro_f1, standard_error};
use crate::task::table::{Table, thousands};

/// Scores on the held-out texts, by the names in `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelsReport {
    /// Share of the texts whose labels are predicted, all of them and no other.
    pub accuracy: f64,
    /// The F1 of all labels of all texts.
    pub micro_f1: f64,
    /// The unweighted mean of the F1 of all labels.
    pub macro_f1: f64,
    /// Binary cross-entropy of a label of a text, in nats.
    pub nll: f64,
    /// Accuracy of the labels that more than half of the training texts have.
    pub majority_accuracy: f64,
    /// Their micro F1.
    pub majority_micro_f1: f64,
    /// Standard error of `accuracy`.
    pub accuracy_standard_error: f64,
    /// Texts evaluated.
    pub n_texts: usize,
    /// Scores of each label.
    pub labels: Vec<ClassScore>,
}

/// The labels of texts and the predicted ones, counted.
struct Counted {
    /// By label.
    labels: Vec<Counts>,
    n_right: usize,
    n_texts: usize,
}

impl Counted {
    /// Counts the labels and the predictions of each text.
    fn new<'a>(n_labels: usize, texts: impl IntoIterator<Item = (&'a [bool], Vec<bool>)>) -> Self {
        let labels = vec![Counts::default(); n_labels];
        let mut counted = Self { labels, n_right: 0, n_texts: 0 };
        for (given, predicted) in texts {
            counted.n_right += usize::from(given == predicted);
            counted.n_texts += 1;
            for (label, count) in counted.labels.iter_mut().enumerate() {
                count.add(given[label], predicted[label]);
            }
        }
        counted
    }

    fn accuracy(&self) -> f64 {
        self.n_right as f64 / self.n_texts as f64
    }

    fn micro_f1(&self) -> f64 {
        Counts::sum(&self.labels).f1()
    }

    fn macro_f1(&self) -> f64 {
        macro_f1(&self.labels)
    }
}

impl LabelsReport {
    /// Evaluates `model`, which is built without gradients.
    pub(super) fn new(task: &Classify, model: &Classifier) -> Result<Self> {
        let names = task.labels().names();
        let held_out = held_out(task, model, values)?;
        let nll: f64 = held_out.iter().map(|(item, row)| nll(item.target.labels(), row)).sum();
        let decided = |row: &[f64]| row.iter().map(|&x| x > 0.).collect();
        let texts = held_out.iter().map(|(item, row)| (item.target.labels(), decided(row)));
        let counted = Counted::new(names.len(), texts);
        let usual = usual(&task.data.train, names.len());
        let by_usual = held_out.iter().map(|(item, _)| (item.target.labels(), usual.clone()));
        let majority = Counted::new(names.len(), by_usual);
        let (accuracy, n) = (counted.accuracy(), held_out.len() as f64);
        Ok(Self {
            accuracy,
            micro_f1: counted.micro_f1(),
            macro_f1: counted.macro_f1(),
            nll: nll / (n * names.len() as f64),
            majority_accuracy: majority.accuracy(),
            majority_micro_f1: majority.micro_f1(),
            accuracy_standard_error: standard_error(accuracy, held_out.len()),
            n_texts: held_out.len(),
            labels: ClassScore::of_counts(Items::Texts, names, &counted.labels),
        })
    }

    pub(super) fn metrics(&self) -> BTreeMap<String, f64> {
        let Self { accuracy, micro_f1, macro_f1, nll, .. } = *self;
        by_name([
            ("accuracy", accuracy),
            ("micro_f1", micro_f1),
            ("macro_f1", macro_f1),
            ("nll", nll),
        ])
    }
}

/// −Σ log σ(±x) over the labels, without overflow: σ(x) for a label that the text has, σ(−x) for the others.
fn nll(has: &[bool], logits: &[f64]) -> f64 {
    let signed = has.iter().zip(logits).map(|(&has, &x)| if has { -x } else { x });
    signed.map(|x| x.max(0.) + (-x.abs()).exp().ln_1p()).sum()
}

/// The metrics of the predictions, a 0 or 1 for each label of each of `items`.
pub(super) fn of_outputs(
    items: &[Item],
    n_labels: usize,
    outputs: &[f64],
) -> Vec<(&'static str, f64)> {
    let predicted = outputs.chunks(n_labels.max(1));
    let predicted = predicted.map(|row| row.iter().map(|&one| one == 1.).collect());
    let given = items.iter().map(|item| item.target.labels());
    let counted = Counted::new(n_labels, given.zip(predicted));
    vec![
        ("accuracy", counted.accuracy()),
        ("micro_f1", counted.micro_f1()),
        ("macro_f1", counted.macro_f1()),
    ]
}

/// The labels that more than half of the training texts have.
fn usual(train: &[Item], n_labels: usize) -> Vec<bool> {
    let n_with = |label: usize| train.iter().filter(|item| item.target.labels()[label]).count();
    (0..n_labels).map(|label| 2 * n_with(label) > train.len()).collect()
}

impl fmt::Display for LabelsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut scores = Table::new(["", "accuracy", "micro F1", "macro F1", "NLL"]);
        let of = |score: f64| format!("{score:.4}");
        let none = String::new;
        let (accuracy, micro) = (of(self.majority_accuracy), of(self.majority_micro_f1));
        scores.row(["majority".to_owned(), accuracy, micro, none(), none()]);
        let Self { accuracy, micro_f1, macro_f1, nll, .. } = *self;
        let transformer = [accuracy, micro_f1, macro_f1, nll].map(of);
        scores.row(["transformer".to_owned()].into_iter().chain(transformer));
        let (n, error) = (thousands(self.n_texts as u64), self.accuracy_standard_error);
        write!(f, "{scores}over {n} texts held out, right with all of their labels; ")?;
        writeln!(f, "standard error of the accuracy {error:.4}")?;
        write!(f, "\n{}", score_table(Items::Texts, &self.labels))
    }
}
