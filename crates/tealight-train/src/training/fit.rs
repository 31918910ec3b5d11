//! The training loop.

use std::sync::Arc;
use std::thread;

use tealight_ops::device::shares_one_stream;

use super::distributed::step::SharedStep;
use super::evaluation::evaluate_step;
use super::forward_backward::ForwardBackward;
use super::outputs::Outputs;
use super::prefetch::{BatchShare, Prefetch};
use super::session::Session;
use super::throughput::Throughput;
use super::train_step::{StepError, StepMetrics, StepOutcome, train_step};
use crate::error::{Error, Result};
use crate::monitor::bad_step::BadStep;
use crate::observer::{Event, Observers, StepReport};
use crate::run::Checkpoints;
use crate::task::Task;

/// Trains up to step `until`, the last step or early stopping; saves into `checkpoints`, if given, and reports to
/// `observers`.
///
/// # Errors
/// Those of the data, the model, the disk and the observers, and a bad step that ends the run. If a step fails
/// before its update, the state before it is saved.
pub fn fit<T: Task>(
    session: &mut Session<T>,
    until: u64,
    checkpoints: Option<&Checkpoints>,
    observers: &mut Observers<'_>,
) -> Result<()> {
    fit_unless_stopped(session, until, &|| false, checkpoints, observers)
}

/// As [`fit`], but also ends after the first step at whose end `is_stopped` returns true: a signal, or a time
/// limit. Of several ranks, all end after the same step; only rank 0 needs `checkpoints` and `observers`.
pub fn fit_unless_stopped<T: Task>(
    session: &mut Session<T>,
    until: u64,
    is_stopped: &dyn Fn() -> bool,
    checkpoints: Option<&Checkpoints>,
    observers: &mut Observers<'_>,
) -> Result<()> {
    if session.config.teacher.is_some() && session.teacher.is_none() {
        let message =
            "`teacher.model` is set, and the session has no teacher: `Session::learn_from` sets it";
        return Err(Error::config(["teacher.model"], message));
    }
    let task = Arc::clone(&session.task);
    thread::scope(|scope| {
        let prefetches = shares_one_stream(session.params.device());
        let n = session.config.training.micro_batches;
        let share = BatchShare::new(n, session.ranks.part_of(n));
        let batches = Prefetch::new(&*task, share, prefetches.then_some(scope));
        let shared = SharedStep::start(session, scope)?;
        let forward_backward = ForwardBackward::new(session, batches, shared, is_stopped);
        let outputs = Outputs::new(session, checkpoints, observers)?;
        train(session, forward_backward, until, outputs)
    })
}

fn train<T: Task>(
    session: &mut Session<T>,
    mut forward_backward: ForwardBackward<'_, '_, T>,
    until: u64,
    mut outputs: Outputs<'_, '_>,
) -> Result<()> {
    let (total, log_every) = (session.config.training.steps, session.config.log.every);
    let last_step = until.min(total);

    outputs.finish_save(session)?;
    if rolls_back(session) && session.progress.bad_step.roll_back_to.is_none() {
        session.progress.bad_step.roll_back_to = Some(session.progress.step);
        outputs.save(session)?;
    }
    evaluate_first(session, &mut outputs)?;
    let mut throughput = Throughput::start();
    // A run that early stopping has ended makes no further step when it is resumed.
    while session.progress.step < last_step && !session.progress.early_stopping.has_stopped() {
        if forward_backward.is_stop_requested() {
            return outputs.save_unless_saved(session);
        }
        let outcome = train_step(session, &mut forward_backward).map_err(|error| match error {
            StepError::BeforeUpdate(error) => {
                // Report the original error, not a failure to save.
                if session.ranks.failure().is_some() {
                    let _ = outputs.save_unless_saved(session);
                }
                error
            }
            StepError::DuringUpdate(error) => error,
        })?;
        forward_backward.report_capture(outputs.observers)?;

        let step = session.progress.step;
        match outcome {
            StepOutcome::Updated(metrics) => {
                throughput.count(session.examples_per_step(), metrics.n_tokens);
                if is_due(step, log_every, total) {
                    log(step, &metrics, &mut throughput, &mut outputs)?;
                }
            }
            StepOutcome::Skipped(bad_step) => {
                outputs.notify(&Event::Skipped { bad_step: &bad_step })?;
            }
            StepOutcome::RollBack(bad_step) => {
                outputs.roll_back(session, &bad_step)?;
                throughput = Throughput::start();
                continue;
            }
        }

        if evaluate_and_save(session, last_step, &mut outputs)? {
            throughput = Throughput::start();
        }
    }
    Ok(())
}

/// Evaluates the model before the first step, if `training.evaluate_first` asks for it and that has not been done, and saves
/// it as the best so far.
fn evaluate_first<T: Task>(session: &mut Session<T>, outputs: &mut Outputs<'_, '_>) -> Result<()> {
    let is_wanted = session.config.training.evaluate_first && session.progress.step == 0;
    let is_done = session.progress.early_stopping.state.best.is_some();
    if is_wanted && !is_done && evaluate_step(session, outputs.observers)?.is_best {
        outputs.save(session)?;
    }
    Ok(())
}

/// Whether something that happens every `every` steps, and at the end of the run, is due after `step`.
fn is_due(step: u64, every: u64, total: u64) -> bool {
    step.is_multiple_of(every) || step == total
}

fn rolls_back<T: Task>(session: &Session<T>) -> bool {
    matches!(session.config.training.bad_step, BadStep::RollBack(_))
}

/// Evaluates and saves if the step that was just made requires it; whether it did either.
fn evaluate_and_save<T: Task>(
    session: &mut Session<T>,
    last_step: u64,
    outputs: &mut Outputs<'_, '_>,
) -> Result<bool> {
    let (step, total) = (session.progress.step, session.config.training.steps);
    let evaluates = is_due(step, session.config.training.evaluate_every, total);
    let verdict = evaluates.then(|| evaluate_step(session, outputs.observers)).transpose()?;
    let is_decisive = verdict.is_some_and(|verdict| verdict.is_best || verdict.stops());
    let save_is_due = is_decisive || is_due(step, session.config.checkpoint.every, total);
    if save_is_due && rolls_back(session) {
        session.progress.bad_step.roll_back_to = Some(step);
    }
    let saves = save_is_due || step == last_step;
    if saves {
        outputs.save(session)?;
    }
    Ok(saves || evaluates)
}

/// Reports the metrics of a step; nothing if no item of it carried a loss.
fn log(
    step: u64,
    metrics: &StepMetrics,
    throughput: &mut Throughput,
    outputs: &mut Outputs<'_, '_>,
) -> Result<()> {
    let StepMetrics { loss: Some(loss), lr, grad_norm, ref measures, .. } = *metrics else {
        return Ok(());
    };
    let (examples_per_second, tokens_per_second) = throughput.rates();
    let metrics = &measures.read()?.means();
    outputs.notify(&Event::Step(StepReport {
        step,
        loss,
        lr,
        grad_norm,
        examples_per_second,
        tokens_per_second,
        metrics,
    }))
}
