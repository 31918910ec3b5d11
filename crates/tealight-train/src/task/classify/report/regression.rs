//! The errors and the correlations of the numbers that a model predicts for held-out texts.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tealight_model::models::classifier::Classifier;

use super::super::Classify;
use super::super::data::Item;
use super::held_out;
use crate::error::Result;
use crate::inference::values;
use crate::task::metrics::by_name;
use crate::task::scores::{pearson, spearman};
use crate::task::table::{Table, thousands};

/// Scores on the held-out texts, by the names in `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RegressionReport {
    /// Mean squared error.
    pub mse: f64,
    /// Pearson's correlation of the numbers and the predictions.
    pub pearson: f64,
    /// Spearman's correlation of their ranks.
    pub spearmanr: f64,
    /// Mean squared error of the mean number in training.
    pub mean_mse: f64,
    /// Texts evaluated.
    pub n_texts: usize,
}

impl RegressionReport {
    /// Evaluates `model`, which is built without gradients.
    pub(super) fn new(task: &Classify, model: &Classifier) -> Result<Self> {
        let held_out = held_out(task, model, values)?;
        let numbers: Vec<f64> = held_out.iter().map(|(item, _)| item.target.number()).collect();
        let predicted: Vec<f64> = held_out.iter().flat_map(|(_, row)| row.clone()).collect();
        let train = &task.data.train;
        let mean = train.iter().map(|item| item.target.number()).sum::<f64>() / train.len() as f64;
        let mean_squared = |predicted: &[f64]| {
            let squares = numbers.iter().zip(predicted).map(|(a, b)| (a - b).powi(2));
            squares.sum::<f64>() / numbers.len() as f64
        };
        Ok(Self {
            mse: mean_squared(&predicted),
            pearson: pearson(&numbers, &predicted),
            spearmanr: spearman(&numbers, &predicted),
            mean_mse: mean_squared(&vec![mean; numbers.len()]),
            n_texts: numbers.len(),
        })
    }

    pub(super) fn metrics(&self) -> BTreeMap<String, f64> {
        let Self { mse, pearson, spearmanr, .. } = *self;
        by_name([("mse", mse), ("pearson", pearson), ("spearmanr", spearmanr)])
    }
}

/// The metrics of the predicted numbers of all `items`.
pub(super) fn of_outputs(items: &[Item], outputs: &[f64]) -> Vec<(&'static str, f64)> {
    let numbers: Vec<f64> = items.iter().map(|item| item.target.number()).collect();
    vec![("pearson", pearson(&numbers, outputs)), ("spearmanr", spearman(&numbers, outputs))]
}

impl fmt::Display for RegressionReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut scores = Table::new(["", "MSE", "Pearson", "Spearman"]);
        let of = |score: f64| format!("{score:.4}");
        scores.row(["mean".to_owned(), of(self.mean_mse), String::new(), String::new()]);
        let transformer = [self.mse, self.pearson, self.spearmanr].map(of);
        scores.row(["transformer".to_owned()].into_iter().chain(transformer));
        let n = thousands(self.n_texts as u64);
        writeln!(f, "{scores}over {n} texts held out; the first line predicts the mean of training")
    }
}
