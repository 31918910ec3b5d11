//! The scores of a model that gives each held-out text one class.

use serde_json::json;
use tealight_model::models::classifier::Classifier;

use super::super::Classify;
use super::super::data::Item;
use super::super::file::Example;
use super::held_out;
use crate::error::Result;
use crate::inference::probabilities;
use crate::task::batch::likeliest;
use crate::task::report::Report;
use crate::task::report::classes::{Items, Mistake};
use crate::task::report::reference::Predictor;
use crate::task::scores::{Counts, confusion, macro_f1_of_classes, matthews};
use crate::task::table::thousands;

/// Characters of the text of a mistake.
const MAX_TEXT: usize = 300;
const COLUMNS: [(&str, &str); 5] = [
    ("accuracy", "accuracy"),
    ("f1", "F1"),
    ("macro_f1", "macro F1"),
    ("matthews_correlation", "Matthews"),
    ("nll", "NLL"),
];

/// The scores on the held-out texts: the share of those whose class is predicted, the scores of [`of_confusion`], and
/// the cross-entropy in nats.
pub(super) fn report(task: &Classify, model: &Classifier) -> Result<Report> {
    let names = task.labels().names();
    let held_out = held_out(task, model, probabilities)?;
    let nll: f64 = held_out.iter().map(|(item, row)| -row[item.target.class()].ln()).sum();
    let pairs = held_out.iter().map(|(item, row)| (item.target.class(), likeliest(row)));
    let confusion = confusion(names.len(), pairs);
    let counts = Counts::of_classes(&confusion);
    let right: u64 = counts.iter().map(|class| class.found).sum();
    let majority = counts.get(majority(&task.data.train, names.len()));
    let share = |n: u64| n as f64 / held_out.len() as f64;
    let (accuracy, nll) = (share(right), nll / held_out.len() as f64);
    let mistakes = held_out.iter().map(|(item, row)| (&row[..], item.target.class()));
    let item = |mistake: &Mistake| {
        let Example { text, origin, .. } = &task.data.held_out[mistake.index];
        let both = [Some(&text.text), text.text_pair.as_ref()].into_iter().flatten();
        let shown = both.map(|text| text.chars().take(MAX_TEXT).collect::<String>());
        Ok(json!({
            "text": shown.collect::<Vec<_>>().join(" | "),
            "place": origin.short(),
        }))
    };

    let mut report = Report::new(&COLUMNS);
    report.model(
        [("accuracy", accuracy)].into_iter().chain(of_confusion(&confusion)).chain([("nll", nll)]),
    );
    let majority = share(majority.map_or(0, Counts::n_given));
    report.row(Predictor::Majority, "majority", [("accuracy", majority)]);
    let error = report.standard_error("accuracy", held_out.len());
    report.value("n_texts", held_out.len());
    report.classes(Items::Texts, names, &confusion, &Mistake::all(mistakes), item)?;
    let n = thousands(held_out.len() as u64);
    report.footnote = format!("over {n} texts held out; standard error of the accuracy {error:.4}");
    Ok(report)
}

/// The F1 of the second of two labels, nothing of more; the unweighted mean of the F1 of all labels; the correlation of
/// predictions and classes.
fn of_confusion(confusion: &[Vec<u64>]) -> Vec<(&'static str, f64)> {
    let counts = Counts::of_classes(confusion);
    let f1 = if let [_, second] = &counts[..] { Some(("f1", second.f1())) } else { None };
    let others = [
        ("macro_f1", macro_f1_of_classes(confusion)),
        ("matthews_correlation", matthews(confusion)),
    ];
    f1.into_iter().chain(others).collect()
}

/// The metrics of the predicted classes of all `items`.
pub(super) fn of_outputs(
    items: &[Item],
    n_classes: usize,
    outputs: &[f64],
) -> Vec<(&'static str, f64)> {
    let predicted = outputs.iter().map(|&class| class as usize);
    let given = items.iter().map(|item| item.target.class());
    of_confusion(&confusion(n_classes, given.zip(predicted)))
}

/// The most frequent class in training; the first of equals.
fn majority(train: &[Item], n_classes: usize) -> usize {
    let mut counts = vec![0_u32; n_classes];
    for item in train {
        counts[item.target.class()] += 1;
    }
    (0..n_classes).rev().max_by_key(|&class| counts[class]).unwrap_or(0)
}
