//! How well a classifier finds the classes of held-out texts.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tealight_model::models::classifier::Classifier;

use super::Classify;
use crate::error::Result;
use crate::task::TaskReport;
use crate::task::batch::likeliest;
use crate::task::metrics::by_name;
use crate::task::table::{Table, thousands};

/// Labels up to which the confusion matrix is shown: it has a column for each.
const MAX_COLUMNS: usize = 12;

/// Scores on the held-out texts, by the names in `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Share of the texts whose class is predicted.
    pub accuracy: f64,
    /// The unweighted mean of the F1 of all labels.
    pub macro_f1: f64,
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

impl TaskReport<Classify> for Report {
    fn new(task: &Classify, model: &Classifier) -> Result<Self> {
        let items = &task.data.validation;
        let names = task.labels().names();
        let mut confusion = vec![vec![0; names.len()]; names.len()];
        let mut nll = 0.;
        for chunk in items.chunks(task.evaluation_batch()) {
            let rows = task.probabilities(model, chunk)?;
            for (row, item) in rows.iter().zip(chunk) {
                confusion[item.class as usize][likeliest(row)] += 1;
                nll -= row[item.class as usize].ln();
            }
        }
        let n = items.len() as f64;
        let right: u64 = (0..names.len()).map(|class| confusion[class][class]).sum();
        let accuracy = right as f64 / n;
        let labels = scores(names, &confusion);
        let n_majority = labels.get(task.majority() as usize).map_or(0, |label| label.n_texts);
        Ok(Self {
            accuracy,
            macro_f1: labels.iter().map(|label| label.f1).sum::<f64>() / names.len() as f64,
            nll: nll / n,
            majority_accuracy: n_majority as f64 / n,
            accuracy_standard_error: (accuracy * (1. - accuracy) / n).sqrt(),
            n_texts: items.len(),
            labels,
            confusion,
        })
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        by_name([("accuracy", self.accuracy), ("macro_f1", self.macro_f1), ("nll", self.nll)])
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut scores = Table::new(["", "accuracy", "macro F1", "NLL"]);
        let of = |score: f64| format!("{score:.4}");
        let none = String::new;
        scores.row(["majority".to_owned(), of(self.majority_accuracy), none(), none()]);
        let Self { accuracy, macro_f1, nll, .. } = *self;
        scores.row(["transformer".to_owned(), of(accuracy), of(macro_f1), of(nll)]);
        let (n, error) = (thousands(self.n_texts as u64), self.accuracy_standard_error);
        writeln!(f, "{scores}over {n} texts held out; standard error of the accuracy {error:.4}")?;
        write!(f, "\n{}", by_label(&self.labels))?;
        if self.labels.len() <= MAX_COLUMNS { write!(f, "\n{}", self.confusion()) } else { Ok(()) }
    }
}

impl Report {
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
}

fn by_label(labels: &[LabelScore]) -> Table {
    let mut table = Table::new(["label", "texts", "precision", "recall", "F1"]);
    for LabelScore { label, precision, recall, f1, n_texts } in labels {
        let [precision, recall, f1] = [precision, recall, f1].map(|score| format!("{score:.4}"));
        table.row([shown(label), thousands(*n_texts), precision, recall, f1]);
    }
    table
}

/// A label in a cell.
fn shown(label: &str) -> String {
    label.escape_debug().to_string()
}

fn scores(names: &[String], confusion: &[Vec<u64>]) -> Vec<LabelScore> {
    let share = |part: u64, whole: u64| if whole == 0 { 0. } else { part as f64 / whole as f64 };
    let score = |(class, label): (usize, &String)| {
        let found = confusion[class][class];
        let n_texts = confusion[class].iter().sum();
        let given = confusion.iter().map(|row| row[class]).sum();
        LabelScore {
            label: label.clone(),
            precision: share(found, given),
            recall: share(found, n_texts),
            // 2PR / (P + R) with P = found / given and R = found / n_texts
            f1: share(2 * found, given + n_texts),
            n_texts,
        }
    };
    names.iter().enumerate().map(score).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_worked_by_hand() {
        let names = ["a", "b", "c"].map(str::to_owned);
        let confusion = vec![vec![3, 1, 0], vec![2, 4, 0], vec![0, 0, 0]];
        let scores = scores(&names, &confusion);
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
