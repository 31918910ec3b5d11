//! The scores of a model that gives each held-out text any number of labels.

use tealight_model::models::classifier::Classifier;

use super::super::Classify;
use super::super::data::Item;
use super::held_out;
use crate::error::Result;
use crate::inference::values;
use crate::task::report::Report;
use crate::task::report::classes::Items;
use crate::task::report::reference::Predictor;
use crate::task::scores::{Counts, macro_f1};
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
    /// the unweighted mean of the F1 of all labels.
    fn scores(&self) -> [(&'static str, f64); 3] {
        [
            ("accuracy", self.n_right as f64 / self.n_texts as f64),
            ("micro_f1", Counts::sum(&self.labels).f1()),
            ("macro_f1", macro_f1(&self.labels)),
        ]
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
    let usual = usual(&task.data.train, names.len());
    let by_usual = held_out.iter().map(|(item, _)| (item.target.labels(), usual.clone()));
    let [accuracy, micro_f1, _] = Counted::new(names.len(), by_usual).scores();
    let n = held_out.len();

    let mut report = Report::new(&COLUMNS);
    let nll = ("nll", nll / (n as f64 * names.len() as f64));
    report.model(counted.scores().into_iter().chain([nll]));
    report.row(Predictor::Majority, "majority", [accuracy, micro_f1]);
    let error = report.standard_error("accuracy", n);
    report.value("n_texts", n);
    report.class_scores(Items::Texts, names, &counted.labels);
    let n = thousands(n as u64);
    report.footnote = format!(
        "over {n} texts held out, right with all of their labels; standard error of the accuracy {error:.4}"
    );
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
    n_labels: usize,
    outputs: &[f64],
) -> Vec<(&'static str, f64)> {
    let predicted = outputs.chunks(n_labels.max(1));
    let predicted = predicted.map(|row| row.iter().map(|&one| one == 1.).collect());
    let given = items.iter().map(|item| item.target.labels());
    Counted::new(n_labels, given.zip(predicted)).scores().into()
}

/// The labels that more than half of the training texts have.
fn usual(train: &[Item], n_labels: usize) -> Vec<bool> {
    let n_with = |label: usize| train.iter().filter(|item| item.target.labels()[label]).count();
    (0..n_labels).map(|label| 2 * n_with(label) > train.len()).collect()
}
