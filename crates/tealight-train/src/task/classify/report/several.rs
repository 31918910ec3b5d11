//! The scores of a model that gives each held-out text any number of labels.

use std::collections::BTreeMap;

use tealight_model::models::classifier::Classifier;

use super::super::Classify;
use super::super::data::Item;
use super::{add_thresholds, held_out};
use crate::error::Result;
use crate::inference::values;
use crate::task::Task as _;
use crate::task::report::classes::Items;
use crate::task::report::reference::Predictor;
use crate::task::report::{Report, held_out_if};
use crate::task::scores::{self, Counts, Frequencies, macro_f1};
use crate::task::table::thousands;

const COLUMNS: [(&str, &str); 4] =
    [("accuracy", "accuracy"), ("micro_f1", "micro F1"), ("macro_f1", "macro F1"), ("nll", "NLL")];

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

    /// The share of the texts whose labels are predicted, all of them and no other; the F1 of all labels of all texts;
    /// the unweighted mean of the F1 of all labels; the F1 of the label `rarest`.
    fn scores(&self, rarest: Option<usize>) -> Vec<(&'static str, f64)> {
        let scores = [
            ("accuracy", self.n_right as f64 / self.n_texts as f64),
            ("micro_f1", Counts::sum(&self.labels).f1()),
            ("macro_f1", macro_f1(&self.labels)),
        ];
        let rarest = rarest.map(|label| ("rarest_f1", self.labels[label].f1()));
        scores.into_iter().chain(rarest).collect()
    }
}

/// The scores on the held-out texts: those of [`Counted::scores`], and the binary cross-entropy of a label of a text in
/// nats. The majority has the labels that more than half of the training texts have.
pub(super) fn report(task: &Classify, model: &Classifier) -> Result<Report> {
    let names = task.labels().names();
    let held_out = held_out(task, model, values)?;
    let nll: f64 = held_out.iter().map(|(item, row)| nll(item.target.labels(), row)).sum();
    let decided = |row: &[f64]| row.iter().map(|&x| x > 0.).collect();
    let texts = held_out.iter().map(|(item, row)| (item.target.labels(), decided(row)));
    let counted = Counted::new(names.len(), texts);
    let n = held_out.len();

    let mut report = Report::new(&COLUMNS);
    let nll = ("nll", nll / (n as f64 * names.len() as f64));
    report.model(counted.scores(task.frequencies.rarest()).into_iter().chain([nll]));
    report.row(Predictor::Majority, "majority", scores_of_majority(task));
    let error = report.standard_error("accuracy", n);
    report.value("n_texts", n);
    report.class_scores(Items::Texts, names, &counted.labels);
    let sigmoid = |x: f64| 1. / (1. + (-x).exp());
    let probabilities = |label: usize| {
        let texts = held_out.iter();
        texts.map(move |(item, row)| (sigmoid(row[label]), item.target.labels()[label])).collect()
    };
    let of_labels: Vec<(&str, _)> =
        names.iter().enumerate().map(|(label, name)| (&**name, probabilities(label))).collect();
    add_thresholds(task, &of_labels, &mut report)?;
    let n = thousands(n as u64);
    let held_out = held_out_if(!task.is_test);
    report.footnote = format!(
        "over {n} texts{held_out}, right with all of their labels; standard error of the accuracy {error:.4}"
    );
    let remark = task.remark(&report.metrics);
    report.add_remark(remark);
    Ok(report)
}

/// −Σ log σ(±x) over the labels, without overflow: σ(x) for a label that the text has, σ(−x) for the others.
fn nll(has: &[bool], logits: &[f64]) -> f64 {
    let signed = has.iter().zip(logits).map(|(&has, &x)| if has { -x } else { x });
    signed.map(|x| x.max(0.) + (-x.abs()).exp().ln_1p()).sum()
}

/// The metrics of the predictions, a 0 or 1 for each label of each of `items`.
pub(super) fn of_outputs(
    items: &[Item],
    frequencies: &Frequencies,
    outputs: &[f64],
) -> Vec<(&'static str, f64)> {
    let n_labels = frequencies.trained.len();
    let predicted = outputs.chunks(n_labels.max(1));
    let predicted = predicted.map(|row| row.iter().map(|&one| one == 1.).collect());
    let given = items.iter().map(|item| item.target.labels());
    Counted::new(n_labels, given.zip(predicted)).scores(frequencies.rarest())
}

/// The scores of the labels that more than half of the training texts have. Their probabilities are the shares of the
/// training texts that have them.
fn scores_of_majority(task: &Classify) -> Vec<(&'static str, f64)> {
    let (frequencies, held_out) = (&task.frequencies, &task.data.validation);
    let n_trained = task.data.train.len() as f64;
    // A label of no text, or of all, counts half a text, because a held-out text may have it, or lack it.
    let share = |&n: &u64| (n as f64).clamp(0.5, n_trained - 0.5) / n_trained;
    let shares: Vec<f64> = frequencies.trained.iter().map(share).collect();
    let usual: Vec<bool> = shares.iter().map(|&share| share > 0.5).collect();
    let texts = held_out.iter().map(|item| (item.target.labels(), usual.clone()));
    let counted = Counted::new(usual.len(), texts);
    let logits: Vec<f64> = shares.iter().map(|share| (share / (1. - share)).ln()).collect();
    let nll: f64 = held_out.iter().map(|item| nll(item.target.labels(), &logits)).sum();
    let nll = [("nll", nll / (held_out.len() as f64 * usual.len() as f64))];
    counted.scores(frequencies.rarest()).into_iter().chain(nll).collect()
}

/// A line for the user, if a model with these `metrics` is no better than the majority.
pub(super) fn no_better(task: &Classify, metrics: &BTreeMap<String, f64>) -> Option<String> {
    let name = "always giving the labels that most texts have";
    scores::no_better(metrics, name, &scores_of_majority(task), &["accuracy", "micro_f1"])
}
