//! The loss and metrics of a model on the validation split, without a graph.

use tealight_model::Mode;

use super::metrics::{Measures, Metrics};
use super::{Split, Task};
use crate::error::Result;

/// Averages over all batches of the validation split, and what the task measures besides; `model` is
/// built from frozen parameters.
pub fn evaluate<T: Task>(task: &T, model: &T::Model) -> Result<Metrics> {
    let mut metrics = losses(task, model)?;
    metrics.merge(&task.measure(model)?);
    Ok(metrics)
}

/// Averages over all batches of the validation split.
pub(crate) fn losses<T: Task>(task: &T, model: &T::Model) -> Result<Metrics> {
    let mut measures = Measures::default();
    for index in 0..task.n_evaluation_batches() {
        let loss = task.loss(model, &task.batch(Split::Validation, index)?, Mode::Eval)?;
        measures.merge(loss.measures());
    }
    measures.read()
}
