//! Metrics of a model on held-out texts.

mod classes;
mod regression;
mod several;

use std::collections::BTreeMap;

use candle_core::Tensor;
use tealight_model::Mode;
use tealight_model::models::classifier::Classifier;

use super::data::{Item, Target};
use super::{Classify, logits};
use crate::error::Result;
use crate::inference::labels::Objective;
use crate::task::report::Report;
use crate::task::thresholds::{Aim, OfLabel, tuned};

/// The scores of `model`, which is built without gradients, on the held-out texts.
pub(super) fn report(task: &Classify, model: &Classifier) -> Result<Report> {
    match task.labels().objective() {
        Objective::Classes => classes::report(task, model),
        Objective::Labels => several::report(task, model),
        Objective::Regression => regression::report(task, model),
    }
}

/// The metrics of an evaluation that are no averages over texts, from the predictions for all held-out items.
pub(super) fn of_outputs(task: &Classify, outputs: &[f64]) -> Vec<(&'static str, f64)> {
    let (items, frequencies) = (&task.data.validation, &task.frequencies);
    match task.labels().objective() {
        Objective::Classes => classes::of_outputs(items, frequencies, outputs),
        Objective::Labels => several::of_outputs(items, frequencies, outputs),
        Objective::Regression => regression::of_outputs(items, outputs),
    }
}

/// A line for the user, if a model with these `metrics` is no better than the majority.
pub(super) fn remark(task: &Classify, metrics: &BTreeMap<String, f64>) -> Option<String> {
    match task.labels().objective() {
        Objective::Classes => task.frequencies.no_better(metrics, task.labels().names()),
        Objective::Labels => several::no_better(task, metrics),
        Objective::Regression => None,
    }
}

/// Chooses a threshold for each label, if the settings ask for it; the report keeps them. On texts of a test it says that the
/// scores do not follow those of the run.
fn add_thresholds(task: &Classify, labels: &[OfLabel<'_>], report: &mut Report) -> Result<()> {
    let Some(aim) = task.config.threshold.as_deref() else { return Ok(()) };
    if task.is_test {
        let note = "all scores here are by a probability of 0.5; `classify` follows the thresholds of the run\n";
        report.section(&note);
        return Ok(());
    }
    let thresholds = tuned(Aim::parse(aim)?, labels, report);
    report.decision.get_or_insert_default().thresholds = thresholds.into_iter().collect();
    Ok(())
}

/// Each held-out item, with what `read` makes of its logits.
fn held_out<'a, T>(
    task: &'a Classify,
    model: &Classifier,
    read: impl Fn(&Tensor) -> Result<Vec<T>>,
) -> Result<Vec<(&'a Item, T)>> {
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

    /// The class, or all labels that the text has.
    pub(super) fn classes(&self) -> Vec<usize> {
        match self {
            Self::Class(class) => vec![*class as usize],
            Self::Labels(has) => (0..has.len()).filter(|&label| has[label]).collect(),
            Self::Number(_) => Vec::new(),
        }
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
