//! How well a classifier finds the classes of held-out texts.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tealight_model::models::classifier::Classifier;

use super::super::Classify;
use super::super::data::Item;
use super::held_out;
use crate::data::text::tokenizer::Specials;
use crate::error::Result;
use crate::inference::probabilities;
use crate::task::batch::likeliest;
use crate::task::scores::{Counts, confusion, macro_f1, matthews};
use crate::task::table::{Table, thousands};

/// Labels up to which the confusion matrix is shown: it has a column for each.
const MAX_COLUMNS: usize = 12;
/// The mistakes that are listed, and those that are shown.
const N_MISTAKES: usize = 100;
const N_SHOWN: usize = 5;
/// Characters of the text of a mistake, in the list and where it is shown.
const MAX_TEXT: usize = 300;
const MAX_CELL: usize = 60;

/// Scores on the held-out texts, by the names in `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClassesReport {
    /// Share of the texts whose class is predicted.
    pub accuracy: f64,
    /// The F1 of the second of two labels; `None` of more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub f1: Option<f64>,
    /// The unweighted mean of the F1 of all labels.
    pub macro_f1: f64,
    /// The correlation of predictions and classes.
    pub matthews_correlation: f64,
    /// Cross-entropy, in nats.
    pub nll: f64,
    /// Accuracy of the most frequent label in training.
    pub majority_accuracy: f64,
    /// Standard error of `accuracy`.
    pub accuracy_standard_error: f64,
    /// Texts evaluated.
    pub n_texts: usize,
    /// Scores of each label.
    pub labels: Vec<LabelScore>,
    /// `(n_classes, n_classes)`: texts of the row's label for which the column's was predicted.
    pub confusion: Vec<Vec<u64>>,
    /// The most confident mistakes, the most confident first.
    pub mistakes: Vec<Mistake>,
}

/// A held-out text whose label is not predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mistake {
    /// The beginning of the text, as the tokens that the model reads say it.
    pub text: String,
    /// Its label.
    pub label: String,
    /// The predicted label.
    pub predicted: String,
    /// The probability of the predicted label.
    pub probability: f64,
}

/// How well a label is predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LabelScore {
    /// The label.
    pub label: String,
    /// Share of the texts with this prediction that have the label; 0 without such texts.
    pub precision: f64,
    /// Share of the texts with this label for which it is predicted; 0 without such texts.
    pub recall: f64,
    /// The harmonic mean of both; 0 if both are 0.
    pub f1: f64,
    /// Texts that have the label.
    pub n_texts: u64,
}

impl ClassesReport {
    /// Evaluates `model`, which is built without gradients.
    pub(super) fn new(task: &Classify, model: &Classifier) -> Result<Self> {
        let names = task.labels().names();
        let held_out = held_out(task, model, probabilities)?;
        let nll: f64 = held_out.iter().map(|(item, row)| -row[item.target.class()].ln()).sum();
        let pairs = held_out.iter().map(|(item, row)| (item.target.class(), likeliest(row)));
        let confusion = confusion(names.len(), pairs);
        let n = held_out.len() as f64;
        let right: u64 = (0..names.len()).map(|class| confusion[class][class]).sum();
        let accuracy = right as f64 / n;
        let labels = LabelScore::of_classes(names, &confusion);
        let n_majority = labels.get(majority(&task.data.train, names.len()));
        let n_majority = n_majority.map_or(0, |label| label.n_texts);
        Ok(Self {
            accuracy,
            f1: if let [_, second] = &labels[..] { Some(second.f1) } else { None },
            macro_f1: labels.iter().map(|label| label.f1).sum::<f64>() / names.len() as f64,
            matthews_correlation: matthews(&confusion),
            nll: nll / n,
            majority_accuracy: n_majority as f64 / n,
            accuracy_standard_error: (accuracy * (1. - accuracy) / n).sqrt(),
            n_texts: held_out.len(),
            labels,
            confusion,
            mistakes: mistakes(task, &held_out)?,
        })
    }

    pub(super) fn metrics(&self) -> BTreeMap<String, f64> {
        let Self { accuracy, f1, macro_f1, matthews_correlation, nll, .. } = *self;
        let all = [
            ("accuracy", Some(accuracy)),
            ("f1", f1),
            ("macro_f1", Some(macro_f1)),
            ("matthews_correlation", Some(matthews_correlation)),
            ("nll", Some(nll)),
        ];
        all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }
}

/// The most confident mistakes.
fn mistakes(task: &Classify, held_out: &[(&Item, Vec<f64>)]) -> Result<Vec<Mistake>> {
    let names = task.labels().names();
    let wrong = held_out.iter().filter(|(item, row)| likeliest(row) != item.target.class());
    let mut wrong: Vec<_> = wrong.map(|(item, row)| (item, likeliest(row), row)).collect();
    wrong.sort_by(|(_, a, a_row), (_, b, b_row)| b_row[*b].total_cmp(&a_row[*a]));
    let mistake = |(item, predicted, row): (&&Item, usize, &Vec<f64>)| {
        let text = task.data.encoder.tokenizer.decode(&item.tokens.ids, Specials::Skip)?;
        Ok(Mistake {
            text: text.chars().take(MAX_TEXT).collect(),
            label: names[item.target.class()].clone(),
            predicted: names[predicted].clone(),
            probability: row[predicted],
        })
    };
    wrong.into_iter().take(N_MISTAKES).map(mistake).collect()
}

/// The metrics of the predicted classes of all `items`.
pub(super) fn of_outputs(
    items: &[Item],
    n_classes: usize,
    outputs: &[f64],
) -> Vec<(&'static str, f64)> {
    let predicted = outputs.iter().map(|&class| class as usize);
    let confusion =
        confusion(n_classes, items.iter().map(|item| item.target.class()).zip(predicted));
    let counts: Vec<_> = (0..n_classes).map(|class| Counts::of_class(&confusion, class)).collect();
    let mut metrics =
        vec![("macro_f1", macro_f1(&counts)), ("matthews_correlation", matthews(&confusion))];
    if let [_, second] = &counts[..] {
        metrics.push(("f1", second.f1()));
    }
    metrics
}

/// The most frequent class in training; the first of equals.
fn majority(train: &[Item], n_classes: usize) -> usize {
    let mut counts = vec![0_u32; n_classes];
    for item in train {
        counts[item.target.class()] += 1;
    }
    (0..n_classes).rev().max_by_key(|&class| counts[class]).unwrap_or(0)
}

impl fmt::Display for ClassesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let heading = ["", "accuracy", "F1", "macro F1", "Matthews", "NLL"];
        let mut scores = Table::new(heading);
        let of = |score: f64| format!("{score:.4}");
        let none = String::new;
        let Self { accuracy, f1, macro_f1, matthews_correlation, nll, .. } = *self;
        let majority = of(self.majority_accuracy);
        scores.row(["majority".to_owned(), majority, none(), none(), none(), none()]);
        let f1 = f1.map_or_else(none, of);
        let (macro_f1, matthews) = (of(macro_f1), of(matthews_correlation));
        scores.row(["transformer".to_owned(), of(accuracy), f1, macro_f1, matthews, of(nll)]);
        let (n, error) = (thousands(self.n_texts as u64), self.accuracy_standard_error);
        writeln!(f, "{scores}over {n} texts held out; standard error of the accuracy {error:.4}")?;
        write!(f, "\n{}", LabelScore::table(&self.labels))?;
        if self.labels.len() <= MAX_COLUMNS {
            write!(f, "\n{}", self.confusion())?;
        }
        self.write_mistakes(f)
    }
}

impl ClassesReport {
    /// A row for each label, a column for each prediction.
    fn confusion(&self) -> Table {
        let labels: Vec<String> = self.labels.iter().map(|score| shown(&score.label)).collect();
        let mut table =
            Table::new(["label ╲ predicted".to_owned()].into_iter().chain(labels.clone()));
        for (label, row) in labels.into_iter().zip(&self.confusion) {
            table.row([label].into_iter().chain(row.iter().map(|&n| thousands(n))));
        }
        table
    }

    fn write_mistakes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.mistakes.is_empty() {
            return Ok(());
        }
        let mut table =
            Table::new(["most confident mistakes", "label", "predicted", "probability"]);
        for Mistake { text, label, predicted, probability } in self.mistakes.iter().take(N_SHOWN) {
            let text: String = text.chars().take(MAX_CELL).collect();
            table.row([shown(&text), shown(label), shown(predicted), format!("{probability:.4}")]);
        }
        write!(f, "\n{table}")
    }
}

impl LabelScore {
    pub(super) fn new(label: &str, counts: &Counts) -> Self {
        Self {
            label: label.to_owned(),
            precision: counts.precision(),
            recall: counts.recall(),
            f1: counts.f1(),
            n_texts: counts.n_given(),
        }
    }

    fn of_classes(names: &[String], confusion: &[Vec<u64>]) -> Vec<Self> {
        let score = |(class, label): (usize, &String)| {
            Self::new(label, &Counts::of_class(confusion, class))
        };
        names.iter().enumerate().map(score).collect()
    }

    /// A row for each label.
    pub(super) fn table(labels: &[Self]) -> Table {
        let mut table = Table::new(["label", "texts", "precision", "recall", "F1"]);
        for Self { label, precision, recall, f1, n_texts } in labels {
            let [precision, recall, f1] =
                [precision, recall, f1].map(|score| format!("{score:.4}"));
            table.row([shown(label), thousands(*n_texts), precision, recall, f1]);
        }
        table
    }
}

/// A label in a cell.
fn shown(label: &str) -> String {
    label.escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_worked_by_hand() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let confusion = vec![vec![3, 1, 0], vec![2, 4, 0], vec![0, 0, 0]];
        let scores = LabelScore::of_classes(&names, &confusion);
        assert_eq!((scores[0].precision, scores[0].recall, scores[0].n_texts), (0.6, 0.75, 4));
        assert!((scores[0].f1 - 2. * 0.6 * 0.75 / 1.35).abs() < 1e-15);
        assert_eq!((scores[1].precision, scores[1].recall), (0.8, 4. / 6.));
        assert_eq!((scores[2].precision, scores[2].recall, scores[2].f1), (0., 0., 0.));
    }

    #[test]
    fn the_first_of_equals_is_the_likeliest() {
        assert_eq!(likeliest(&[0.2, 0.4, 0.4]), 1);
    }
}
