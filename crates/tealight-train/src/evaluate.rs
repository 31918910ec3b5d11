//! The loss and metrics of a model on the validation split, without a graph.

use tealight_model::Mode;

use crate::task::{Split, Task};
use crate::{Measures, Metrics, Result};

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

/// A scalar tensor's value.
// On the CPU before f64, which Metal does not have.
pub(crate) fn scalar(tensor: &candle_core::Tensor) -> Result<f64> {
    Ok(tensor
        .to_device(&candle_core::Device::Cpu)?
        .to_dtype(candle_core::DType::F64)?
        .to_scalar()?)
}
