//! The errors and the correlations of the numbers that a model predicts for held-out texts.

use tealight_model::models::classifier::Classifier;

use super::super::Classify;
use super::super::data::Item;
use super::held_out;
use crate::error::Result;
use crate::inference::values;
use crate::task::report::reference::Predictor;
use crate::task::report::{Report, held_out_if};
use crate::task::scores::{pearson, spearman};
use crate::task::table::thousands;

/// Mean squared error, and the correlations of the numbers and of their ranks, on the held-out texts.
pub(super) fn report(task: &Classify, model: &Classifier) -> Result<Report> {
    let held_out = held_out(task, model, values)?;
    let numbers: Vec<f64> = held_out.iter().map(|(item, _)| item.target.number()).collect();
    let predicted: Vec<f64> = held_out.iter().flat_map(|(_, row)| row.clone()).collect();
    let train = &task.data.train;
    let mean = train.iter().map(|item| item.target.number()).sum::<f64>() / train.len() as f64;
    let mean_squared = |predicted: &[f64]| {
        let squares = numbers.iter().zip(predicted).map(|(a, b)| (a - b).powi(2));
        squares.sum::<f64>() / numbers.len() as f64
    };
    let mean_mse = mean_squared(&vec![mean; numbers.len()]);

    let mut report =
        Report::new(&[("mse", "MSE"), ("pearson", "Pearson"), ("spearmanr", "Spearman")]);
    report.model([
        ("mse", mean_squared(&predicted)),
        ("pearson", pearson(&numbers, &predicted)),
        ("spearmanr", spearman(&numbers, &predicted)),
    ]);
    report.row(Predictor::Mean, "mean", [("mse", mean_mse)]);
    report.value("mean_mse", mean_mse);
    report.value("n_texts", numbers.len());
    let n = thousands(numbers.len() as u64);
    let held_out = held_out_if(!task.is_test);
    let of = if task.is_test && task.config.data.test == 0. { "these texts" } else { "training" };
    report.footnote = format!("over {n} texts{held_out}; the first line predicts the mean of {of}");
    Ok(report)
}

/// The metrics of the predicted numbers of all `items`.
pub(super) fn of_outputs(items: &[Item], outputs: &[f64]) -> Vec<(&'static str, f64)> {
    let numbers: Vec<f64> = items.iter().map(|item| item.target.number()).collect();
    vec![("pearson", pearson(&numbers, outputs)), ("spearmanr", spearman(&numbers, outputs))]
}
