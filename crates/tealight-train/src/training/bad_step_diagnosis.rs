//! Finds where a NaN or an infinity of a bad step comes from.

use candle_core::{DType, Device};
use tealight_ops::Gradients;
use tealight_ops::gradients::FaultKind;
use tealight_ops::nan_trace::first_not_finite;

use super::forward_backward::{ForwardBackward, backward, forward};
use super::session::Session;
use crate::error::{BadStepReport, Result, StepFault};
use crate::task::Task;
use crate::task::metrics::scalar;

/// The report of a bad step: its batches, and the first tensor that is not finite.
pub(crate) fn diagnose<T: Task>(
    session: &Session<T>,
    fault: StepFault,
    gradients: &Gradients,
) -> BadStepReport {
    let step = session.progress.step;
    let n_micro = session.config.training.micro_batches;
    let origin = match fault {
        // The fault is reported even if the search for its origin fails.
        StepFault::NotFinite { .. } => origin(session, gradients).ok().flatten(),
        StepFault::Spike { .. } => None,
    };
    let batches = step * n_micro..(step + 1) * n_micro;
    BadStepReport { step: step + 1, fault, batches, origin }
}

/// The first tensor that is not finite: a parameter, a result of the forward or backward pass (which runs
/// again, traced), or a gradient.
fn origin<T: Task>(session: &Session<T>, gradients: &Gradients) -> Result<Option<String>> {
    for (name, parameter) in session.params.iter() {
        // In f64, where a sum of finite f32 is finite.
        let sum = parameter.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.sum_all()?;
        if !scalar(&sum)?.is_finite() {
            return Ok(Some(format!("the parameter `{name}`")));
        }
    }
    let mut eager = ForwardBackward::eager(&*session.task);
    let (pass, origin) = first_not_finite(|| {
        eager.run(session, |batch, context| {
            let loss = forward(session, batch, context)?;
            backward(session, batch, loss, context)
        })
    });
    pass?;
    if let Some(origin) = origin {
        return Ok(Some(origin.to_string()));
    }
    let faults = gradients.audit()?;
    let first = faults.iter().find(|fault| fault.kind == FaultKind::NotFinite);
    Ok(first.map(|fault| format!("the gradient of `{}`", fault.name)))
}
