//! The loss and metrics of a model on the validation split, without a graph.

use crate::data::Split;
use crate::error::Result;
use crate::task::metrics::{Measures, Metrics};
use crate::task::{Evaluated, Task};

/// Averages over all batches of the validation split, and the task's further metrics; `model` is built
/// without gradients.
pub fn evaluate<T: Task>(task: &T, model: &T::Model) -> Result<Metrics> {
    let mut metrics = losses(task, model)?;
    metrics.merge(&task.measure(model)?);
    Ok(metrics)
}

/// Averages over all batches of the validation split, and the scores of all outputs.
pub(crate) fn losses<T: Task>(task: &T, model: &T::Model) -> Result<Metrics> {
    let (mut measures, mut outputs) = (Measures::default(), Vec::new());
    for index in 0..task.n_evaluation_batches() {
        let batch = evaluate_batch(task, model, index)?;
        measures.merge(batch.measures);
        outputs.extend(batch.outputs);
    }
    let mut metrics = measures.read()?;
    metrics.merge(&task.score(&outputs));
    Ok(metrics)
}

/// Batch `index` of the validation split.
pub(crate) fn evaluate_batch<T: Task>(task: &T, model: &T::Model, index: u64) -> Result<Evaluated> {
    let batch = task.batch(Split::Validation, index)?;
    task.evaluate_batch(model, &batch)
}
