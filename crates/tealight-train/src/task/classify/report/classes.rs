//! The scores of a model that gives each held-out text one class.

use std::collections::BTreeMap;

use serde_json::json;
use tealight_model::models::classifier::Classifier;

use super::super::data::Item;
use super::super::file::Example;
use super::super::{Calibration, Classify};
use super::{add_thresholds, held_out};
use crate::error::Result;
use crate::inference::likeliest;
use crate::inference::{probabilities, values};
use crate::task::Task as _;
use crate::task::calibration;
use crate::task::report::classes::{Items, Mistake};
use crate::task::report::reference::Predictor;
use crate::task::report::{Report, held_out_if};
use crate::task::scores::{Frequencies, accuracy, confusion, of_classes};
use crate::task::table::thousands;

/// Characters of the text of a mistake.
const MAX_TEXT: usize = 300;
const COLUMNS: [(&str, &str); 6] = [
    ("accuracy", "accuracy"),
    ("balanced_accuracy", "balanced"),
    ("f1", "F1"),
    ("macro_f1", "macro F1"),
    ("matthews_correlation", "Matthews"),
    ("nll", "NLL"),
];

/// The scores on the held-out texts: the share of those whose class is predicted, the scores of [`of_classes`], and the
/// cross-entropy in nats. The majority predicts the frequencies of the classes in training. The linear model is there
/// if it can be trained on other texts than it is scored on.
pub(super) fn report(task: &Classify, model: &Classifier) -> Result<Report> {
    let names = task.labels().names();
    let (items, (logits, held_out)): (Vec<_>, (Vec<_>, Vec<_>)) =
        held_out(task, model, |logits| {
            Ok(values(logits)?.into_iter().zip(probabilities(logits)?).collect())
        })?
        .into_iter()
        .unzip();
    let classes: Vec<usize> = items.iter().map(|item| item.target.class()).collect();
    let rows = held_out.iter().map(Vec::as_slice);
    let (confusion, of_model) = scores(task, rows);
    let mistakes = held_out.iter().map(Vec::as_slice).zip(classes.iter().copied());
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
    report.model(of_model);
    let mut better = None;
    report.row(Predictor::Majority, "majority", task.frequencies.scores_of_majority());
    if let Some(texts) = &task.data.texts {
        let class_of = |at: usize| task.data.train[at].target.class();
        let weights = task.class_weights.as_deref();
        let linear = texts.predict(names.len(), class_of, weights, &task.data.held_out);
        let (_, of_linear) = scores(task, linear.probabilities.iter().map(Vec::as_slice));
        let [n, of] = [linear.n_texts, task.data.train.len()].map(|n| thousands(n as u64));
        let drawn = if n == of { n } else { format!("{n} of {of}") };
        let name = format!("linear, TF-IDF ({drawn} texts)");
        better = linear_is_better(&report.metrics, &of_linear);
        report.row(Predictor::Linear, name, of_linear);
        report.value("linear_texts", linear.n_texts);
    }
    let error = report.standard_error("accuracy", held_out.len());
    report.value("n_texts", held_out.len());
    report.classes(Items::Texts, names, &confusion, &Mistake::all(mistakes), item)?;
    let judged: Vec<_> = logits.iter().map(Vec::as_slice).zip(classes.iter().copied()).collect();
    // Of texts that are equal to the model.
    let keys = task.data.validation.iter().map(|item| &item.tokens);
    let is_fitted = task.config.calibration == Calibration::Temperature && !task.is_test;
    let temperature = calibration::add(&mut report, Items::Texts, &judged, keys, is_fitted);
    if let [_, second] = names {
        let probability = |row: &[f64]| 1. / (1. + ((row[0] - row[1]) / temperature).exp());
        let texts = judged.iter().map(|&(row, class)| (probability(row), class == 1)).collect();
        add_thresholds(task, &[(second, texts)], &mut report)?;
    }
    let n = thousands(held_out.len() as u64);
    let held_out = held_out_if(!task.is_test);
    report.footnote =
        format!("over {n} texts{held_out}; standard error of the accuracy {error:.4}");
    let remark = task.remark(&report.metrics);
    report.add_remark(remark);
    report.footnote.extend(better);
    Ok(report)
}

/// A line for the user below the footnote, if the linear model has the higher accuracy and the higher macro F1.
fn linear_is_better(
    of_model: &BTreeMap<String, f64>,
    of_linear: &[(&'static str, f64)],
) -> Option<String> {
    let mut compared = of_linear.iter().filter(|(name, _)| ["accuracy", "macro_f1"].contains(name));
    let is_better = compared.all(|(name, score)| *score > of_model[*name]);
    let line = "\nthe linear model is better: a transformer learns more from so few texts if it starts from a trained model \
                (`tealight init classify --data FILE --from MODEL`)";
    is_better.then(|| line.to_owned())
}

/// The confusion matrix of the held-out texts, given the probabilities of the classes of each, and all metrics.
fn scores<'a>(
    task: &Classify,
    rows: impl Iterator<Item = &'a [f64]>,
) -> (Vec<Vec<u64>>, Vec<(&'static str, f64)>) {
    let (n_classes, rows) = (task.labels().names().len(), rows.collect::<Vec<_>>());
    let classes = || task.data.validation.iter().map(|item| item.target.class());
    let nll: f64 = classes().zip(&rows).map(|(class, row)| -row[class].ln()).sum();
    let confusion = confusion(n_classes, classes().zip(rows.iter().map(|row| likeliest(row))));
    let others = of_classes(&confusion, task.frequencies.rarest());
    let scores = [("accuracy", accuracy(&confusion))].into_iter().chain(others);
    let scores = scores.chain([("nll", nll / rows.len() as f64)]).collect();
    (confusion, scores)
}

/// The metrics of the predicted classes of all `items`.
pub(super) fn of_outputs(
    items: &[Item],
    frequencies: &Frequencies,
    outputs: &[f64],
) -> Vec<(&'static str, f64)> {
    let predicted = outputs.iter().map(|&class| class as usize);
    let given = items.iter().map(|item| item.target.class());
    let confusion = confusion(frequencies.trained.len(), given.zip(predicted));
    of_classes(&confusion, frequencies.rarest())
}
