//! The scores of a model that gives each held-out text one class.

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
use crate::task::class_scores::{
    ClassScore, Items, MistakeRow, N_MISTAKES, confusion_table, mistake_table, score_table,
};
use crate::task::scores::{Counts, confusion, macro_f1, matthews, standard_error};
use crate::task::table::{Table, thousands};

/// Characters of the text of a mistake, in the list and where it is printed.
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
    pub labels: Vec<ClassScore>,
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

impl Mistake {
    fn row(&self) -> MistakeRow<'_> {
        let Self { text, label, predicted, probability } = self;
        let item = text.chars().take(MAX_CELL).collect();
        MistakeRow { item, label, predicted, probability: *probability }
    }
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
        let counts = Counts::of_classes(&confusion);
        let labels = ClassScore::of_counts(Items::Texts, names, &counts);
        let n_majority = labels.get(majority(&task.data.train, names.len()));
        let n_majority = n_majority.map_or(0, |label| label.n_items);
        Ok(Self {
            accuracy,
            f1: if let [_, second] = &labels[..] { Some(second.f1) } else { None },
            macro_f1: macro_f1(&counts),
            matthews_correlation: matthews(&confusion),
            nll: nll / n,
            majority_accuracy: n_majority as f64 / n,
            accuracy_standard_error: standard_error(accuracy, held_out.len()),
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
    let counts = Counts::of_classes(&confusion);
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
        write!(f, "\n{}", score_table(Items::Texts, &self.labels))?;
        let confusion = confusion_table(Items::Texts, &self.labels, &self.confusion);
        let mistakes = mistake_table(Items::Texts, self.mistakes.iter().map(Mistake::row));
        confusion.iter().chain(&mistakes).try_for_each(|table| write!(f, "\n{table}"))
    }
}
