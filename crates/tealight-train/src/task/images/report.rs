//! The scores of a model that gives each held-out picture one class, beside its baselines.

use serde_json::json;
use tealight_model::Mode;
use tealight_model::models::image_classifier::ImageClassifier;

use super::Images;
use crate::data::Split;
use crate::data::images::Pictures;
use crate::error::Result;
use crate::inference::likeliest;
use crate::inference::{probabilities, values};
use crate::task::Task;
use crate::task::calibration::{self, Calibration};
use crate::task::report::classes::{Items, Mistake};
use crate::task::report::reference::Predictor;
use crate::task::report::{Report, held_out_if};
use crate::task::scores::{confusion, of_classes};
use crate::task::table::thousands;

/// Classes from which on the top-5 accuracy is told.
const MIN_TOP_5: usize = 10;
const COLUMNS: [(&str, &str); 3] =
    [("accuracy", "accuracy"), ("nll", "NLL"), ("top_5_accuracy", "top 5")];

/// The scores on the held-out pictures: the share of those whose class is predicted or, of ten classes and more, among
/// the five likeliest; the cross-entropy in nats; the scores of [`of_classes`]. The majority predicts the frequencies
/// of the classes in training. The limit is known where pictures are drawn.
pub(super) fn report(task: &Images, model: &ImageClassifier) -> Result<Report> {
    let names = task.labels().names();
    let (mut logits, mut rows, mut classes) = (Vec::new(), Vec::new(), Vec::new());
    for index in 0..task.n_evaluation_batches() {
        let pictures = task.held_out_batch(index);
        let batch = task.batches.plain(&pictures)?;
        let outputs = model.forward(&batch.pictures, Mode::Eval)?;
        logits.extend(values(&outputs)?);
        rows.extend(probabilities(&outputs)?);
        classes.extend(pictures.iter().map(|picture| picture.class as usize));
    }
    let predicted = rows.iter().map(|row| likeliest(row));
    let confusion = confusion(names.len(), classes.iter().copied().zip(predicted));
    let [accuracy, nll] = scores(&rows, &classes);
    let top_5 = (names.len() >= MIN_TOP_5).then(|| ("top_5_accuracy", top_5(&rows, &classes)));
    let mistakes = Mistake::all(rows.iter().map(Vec::as_slice).zip(classes.iter().copied()));
    let item = |&Mistake { index, .. }: &Mistake| {
        let name = task.held_out(index).map_or("", |(_, name, _)| name);
        Ok(json!({ "index": index, "picture": name }))
    };

    let mut report = Report::new(if top_5.is_some() { &COLUMNS } else { &COLUMNS[..2] });
    let others = of_classes(&confusion, task.frequencies.rarest());
    report.model([accuracy].into_iter().chain(top_5).chain([nll]).chain(others));
    let error = report.standard_error("accuracy", rows.len());
    report.row(Predictor::Majority, "majority", task.frequencies.scores_of_majority());
    if let Some(limit) = limit(task, rows.len()) {
        report.row(Predictor::Bayes, "Bayes limit", scores(&limit, &classes));
    }
    report.value("n_pictures", rows.len());
    report.classes(Items::Pictures, names, &confusion, &mistakes, item)?;
    let judged: Vec<_> = logits.iter().map(Vec::as_slice).zip(classes.iter().copied()).collect();
    let keys = (0..judged.len()).map(|at| task.pictures.at(Split::Validation, at).pixels);
    let is_fitted = task.config.calibration == Calibration::Temperature && !task.is_test;
    calibration::add(&mut report, Items::Pictures, &judged, keys, is_fitted);
    let n = thousands(rows.len() as u64);
    let held_out = held_out_if(!task.is_test);
    report.footnote =
        format!("over {n} pictures{held_out}; standard error of the accuracy {error:.4}");
    let remark = task.remark(&report.metrics);
    report.add_remark(remark);
    report.illustrations = task.illustrations(confusion, &mistakes);
    Ok(report)
}

/// Accuracy and NLL of pictures, each given as the probabilities of all classes and its own class.
fn scores(rows: &[Vec<f64>], classes: &[usize]) -> [(&'static str, f64); 2] {
    let n = rows.len() as f64;
    let (mut right, mut nll) = (0., 0.);
    for (row, &class) in rows.iter().zip(classes) {
        right += f64::from(u8::from(likeliest(row) == class));
        nll -= row[class].ln();
    }
    [("accuracy", right / n), ("nll", nll / n)]
}

/// The true distribution of the class of each held-out picture, where they are drawn.
fn limit(task: &Images, n: usize) -> Option<Vec<Vec<f64>>> {
    use rayon::prelude::*;
    let pictures: &Pictures = &task.pictures;
    let shapes = pictures.shapes()?;
    // A class that `task.labels` adds is never drawn.
    let n_classes = task.labels().names().len();
    let row = |index: usize| {
        let (rows, _) = shapes.draw(Split::Validation, index as u64);
        let mut posterior = shapes.posterior(&rows);
        posterior.resize(n_classes, 0.);
        posterior
    };
    Some((0..n).into_par_iter().map(row).collect())
}

fn top_5(rows: &[Vec<f64>], classes: &[usize]) -> f64 {
    let is_in = |(row, &class): (&Vec<f64>, &usize)| {
        let n_likelier = row.iter().filter(|&&other| other > row[class]).count();
        n_likelier < 5
    };
    let n_right = rows.iter().zip(classes).filter(|&pair| is_in(pair)).count();
    n_right as f64 / rows.len() as f64
}
