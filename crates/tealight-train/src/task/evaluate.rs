//! The loss and metrics of a model on the validation split, without a graph.

use tealight_model::Mode;

use crate::data::Split;
use crate::error::Result;
use crate::task::Task;
use crate::task::metrics::{Measures, Metrics};

/// Averages over all batches of the validation split, and the task's further metrics; `model` is built
/// without gradients.
pub fn evaluate<T: Task>(task: &T, model: &T::Model) -> Result<Metrics> {
    let mut metrics = losses(task, model)?;
    metrics.merge(&task.measure(model)?);
    Ok(metrics)
}

/// Averages over all batches of the validation split.
pub(crate) fn losses<T: Task>(task: &T, model: &T::Model) -> Result<Metrics> {
    let mut measures = Measures::default();
    for index in 0..task.n_evaluation_batches() {
        measures.merge(loss_of_batch(task, model, index)?);
    }
    measures.read()
}

/// The averages of one batch of the validation split.
pub(crate) fn loss_of_batch<T: Task>(task: &T, model: &T::Model, index: u64) -> Result<Measures> {
    let batch = task.batch(Split::Validation, index)?;
    Ok(task.loss(model, &batch, Mode::Eval)?.measures())
}
