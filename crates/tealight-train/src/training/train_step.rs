//! One step of training.
//!
//! ```text
//! batch → forward → backward → norm → judgement → clip → update
//! ```

use tealight_ops::gradients::clip_factor;
use tealight_ops::profile::{Phase, timed};
use tealight_ops::{Gradients, with_product_precision};

use super::bad_step_diagnosis::diagnose;
use super::forward_backward::ForwardBackward;
use super::pass::Pass;
use super::session::Session;
use crate::error::{BadStepReport, Error, Result, StepFault};
use crate::monitor::bad_step::StepVerdict;
use crate::monitor::gradient_audit::audit;
use crate::task::Task;
use crate::task::metrics::Measures;

/// The outcome of a step.
pub(crate) enum StepOutcome {
    /// The parameters were updated.
    Updated(StepMetrics),
    /// The step counts, and its update was not made (`training.bad_step`, kind `skip`).
    Skipped(BadStepReport),
    /// Nothing was changed; the run should go back to a checkpoint (kind `roll_back`).
    RollBack(BadStepReport),
}

/// The numbers of a step that updated the parameters.
pub(crate) struct StepMetrics {
    /// The mean training loss; `None` if no item of the step carried a loss.
    pub(crate) loss: Option<f64>,
    pub(crate) lr: f64,
    /// Before clipping.
    pub(crate) grad_norm: f64,
    /// Measures that may still be on the device.
    pub(crate) measures: Measures,
    pub(crate) n_tokens: Option<u64>,
}

/// Why a step failed.
pub(crate) enum StepError {
    /// The session is as it was before the step, and can be saved.
    BeforeUpdate(Error),
    /// Some parameters may have been updated and some not, or the ranks can no longer communicate: the session must not
    /// be saved.
    DuringUpdate(Error),
}

impl<E: Into<Error>> From<E> for StepError {
    fn from(error: E) -> Self {
        match error.into() {
            error @ Error::Communication(_) => Self::DuringUpdate(error),
            error => Self::BeforeUpdate(error),
        }
    }
}

/// Makes the next step of `session`.
pub(crate) fn train_step<T: Task>(
    session: &mut Session<T>,
    forward_backward: &mut ForwardBackward<'_, '_, T>,
) -> Result<StepOutcome, StepError> {
    // Each batch of the step goes forward and backward; gradients and losses are averaged.
    let Pass { gradients, measures, n_tokens, .. } = forward_backward.run(session)?;

    // A device computes the norm last. Reading it first waits for everything once.
    let grad_norm = timed("norm of gradients", Phase::Other, || session.shards.norm(&gradients))?;
    let loss = measures.read_mean("loss")?;
    let training = &session.config.training;
    if session.progress.step == 0 && loss.is_some_and(f64::is_finite) {
        audit(&session.shards.complete(&gradients)?, &session.config.gradient_audit_exceptions())
            .map_err(|error| session.ranks.as_shared_failure(error))?;
    }

    let spike = training.loss_spike.as_ref();
    match session.progress.bad_step.judge(&training.bad_step, spike, loss, grad_norm) {
        StepVerdict::Apply => {}
        StepVerdict::Stop(fault) => {
            let error = Error::BadStep(report(session, fault, &gradients)?);
            return Err(session.ranks.as_shared_failure(error).into());
        }
        StepVerdict::Skip(fault) => {
            let report = report(session, fault, &gradients)?;
            session.progress.step += 1;
            return Ok(StepOutcome::Skipped(report));
        }
        StepVerdict::RollBack(fault) => {
            return Ok(StepOutcome::RollBack(report(session, fault, &gradients)?));
        }
    }

    let clip = training.max_grad_norm.map_or(1., |max_norm| clip_factor(grad_norm, max_norm));
    let lr = learning_rate(session);
    timed("update", Phase::Other, || update(session, &gradients, clip, lr))
        .map_err(StepError::DuringUpdate)?;
    Ok(StepOutcome::Updated(StepMetrics { loss, lr, grad_norm, measures, n_tokens }))
}

/// The report of a step whose update is not made.
fn report<T: Task>(
    session: &Session<T>,
    fault: StepFault,
    gradients: &Gradients,
) -> Result<BadStepReport> {
    Ok(diagnose(session, fault, &session.shards.complete(gradients)?))
}

/// The learning rate of the next step: the schedule's, times the factor of all roll-backs.
fn learning_rate<T: Task>(session: &Session<T>) -> f64 {
    let (config, progress) = (&session.config, &session.progress);
    let (steps, peak) = (config.training.steps, config.optimizer.settings().peak_lr());
    config.schedule.lr(progress.step, steps, peak) * progress.bad_step.lr_factor
}

/// Updates the parameters by `clip` times the gradients, their half-precision copies, and the moving average.
fn update<T: Task>(
    session: &mut Session<T>,
    gradients: &Gradients,
    clip: f64,
    lr: f64,
) -> Result<()> {
    let precision = session.config.training.precision.of_products();
    with_product_precision(precision, || session.optimizer.step_scaled(gradients, clip, lr))?;
    let Session { params, shards, transport, ema, progress, .. } = session;
    shards.gather_parameters(params, &**transport)?;
    params.refresh()?;
    progress.step += 1;
    ema.as_mut().map_or(Ok(()), |ema| ema.update(progress.step - progress.bad_step.n_skipped))
}
