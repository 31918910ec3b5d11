//! Finds where a NaN or an infinity of a bad step comes from.

use candle_core::{DType, Device};
use tealight_ops::Gradients;
use tealight_ops::gradients::FaultKind;
use tealight_ops::nan_trace::{Origin, first_not_finite};

use super::forward_backward::{ForwardBackward, guarded};
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

/// The first tensor that is not finite: a parameter, a result of a forward or backward pass, or a gradient. All ranks
/// call it.
fn origin<T: Task>(session: &Session<T>, gradients: &Gradients) -> Result<Option<String>> {
    // By rank, so in the order of the micro-batches.
    let found = session.ranks.gather(&origin_here(session).ok().flatten())?;
    if let Some(origin) = found.into_iter().flatten().next() {
        return Ok(Some(origin));
    }
    let faults = gradients.audit()?;
    let first = faults.iter().find(|fault| fault.kind == FaultKind::NotFinite);
    Ok(first.map(|fault| format!("the gradient of `{}`", fault.name)))
}

/// The first parameter that is not finite, or the first result in the passes over the micro-batches of this rank, which
/// run again.
fn origin_here<T: Task>(session: &Session<T>) -> Result<Option<String>> {
    for (name, parameter) in session.params.iter() {
        // In f64, where a sum of finite f32 is finite.
        let sum = parameter.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.sum_all()?;
        if !scalar(&sum)?.is_finite() {
            return Ok(Some(format!("the parameter `{name}`")));
        }
    }
    let (step, n_micro) = (session.progress.step, session.config.training.micro_batches);
    for micro in session.ranks.part_of(n_micro) {
        if let Some(origin) = origin_in_pass(session, micro)? {
            let of_batch = match n_micro {
                1 => String::new(),
                n => format!(" over batch {}", step * n + micro),
            };
            return Ok(Some(format!("{origin}{of_batch}{}", parameter_of(session, &origin))));
        }
    }
    Ok(None)
}

fn origin_in_pass<T: Task>(session: &Session<T>, micro: u64) -> Result<Option<Origin>> {
    let mut eager = ForwardBackward::eager(&*session.task);
    let run = || eager.micro_batch(session, session.progress.step, micro, None);
    let (pass, origin) = first_not_finite(|| guarded(session, run));
    pass.map(|_| origin)
}

/// `` , which reads `layer.0.attention.query.weight` ``: the place of an operation in the model, if it has parameters.
fn parameter_of<T: Task>(session: &Session<T>, origin: &Origin) -> String {
    let leaves = session.params.leaves();
    let read = leaves.iter().find(|(_, leaf)| origin.inputs.contains(&leaf.id()));
    read.map(|(name, _)| format!(", which reads `{name}`")).unwrap_or_default()
}
