//! Metrics of a model on held-out texts.

mod classes;
mod regression;
mod several;

use candle_core::Tensor;
use tealight_model::Mode;
use tealight_model::models::classifier::Classifier;

use super::data::{Item, Target};
use super::{Classify, logits};
use crate::error::Result;
use crate::inference::labels::{Labels, Objective};
use crate::task::report::Report;

/// The scores of `model`, which is built without gradients, on the held-out texts.
pub(super) fn report(task: &Classify, model: &Classifier) -> Result<Report> {
    match task.labels().objective() {
        Objective::Classes => classes::report(task, model),
        Objective::Labels => several::report(task, model),
        Objective::Regression => regression::report(task, model),
    }
}

/// The metrics of an evaluation that are no averages over texts, from the predictions for all `items`.
pub(super) fn of_outputs(
    items: &[Item],
    labels: &Labels,
    outputs: &[f64],
) -> Vec<(&'static str, f64)> {
    match labels.objective() {
        Objective::Classes => classes::of_outputs(items, labels.names().len(), outputs),
        Objective::Labels => several::of_outputs(items, labels.names().len(), outputs),
        Objective::Regression => regression::of_outputs(items, outputs),
    }
}

/// Each held-out item, with what `read` makes of its logits.
fn held_out<'a>(
    task: &'a Classify,
    model: &Classifier,
    read: impl Fn(&Tensor) -> Result<Vec<Vec<f64>>>,
) -> Result<Vec<(&'a Item, Vec<f64>)>> {
    let mut all = Vec::with_capacity(task.data.validation.len());
    for items in task.data.validation.chunks(task.evaluation_batch()) {
        let batch = task.batch_of(items)?;
        all.extend(items.iter().zip(read(&logits(model, &batch, Mode::Eval)?)?));
    }
    Ok(all)
}

impl Target {
    /// The class; 0 of something else.
    pub(super) fn class(&self) -> usize {
        if let Self::Class(class) = self { *class as usize } else { 0 }
    }

    /// For each label whether the text has it; none of something else.
    fn labels(&self) -> &[bool] {
        if let Self::Labels(has) = self { has } else { &[] }
    }

    /// The number; 0 of something else.
    fn number(&self) -> f64 {
        if let Self::Number(number) = self { *number } else { 0. }
    }
}
