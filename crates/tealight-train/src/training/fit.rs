//! The loop: gradient, update, and now and then a look at what came of it.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;

use candle_core::{DType, Device};
use tealight_ops::Gradients;
use tealight_ops::device::has_one_queue;
use tealight_ops::gradients::{FaultKind, clip_factor};
use tealight_ops::profile::{Pass, timed};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::watch::first_not_finite;

use crate::config::RunConfig;
use crate::error::Error;
use crate::error::Result;
use crate::error::{BadStepReport, Fault};
use crate::monitor::bad_step::{self, BadStep};
use crate::monitor::early_stopping::{Verdict, unknown_metric};
use crate::monitor::gradient_audit::audit;
use crate::observer::{Event, Observer, StepReport, notify};
use crate::run::checkpoints::{Checkpoints, Selection};
use crate::task::Task;
use crate::task::evaluate::evaluate;
use crate::task::metrics::Measures;
use crate::task::metrics::scalar;
use crate::training::forward_backward::{MicroBatch, Passes};
use crate::training::prefetch::Feed;
use crate::training::session::{Progress, Session};
use crate::training::throughput::{Clock, Rates};

/// So many batches in a row may have nothing to guess at the beginning of a run.
const MAX_EMPTY: u64 = 100;

/// How long a run goes on, at most.
#[derive(Clone, Copy)]
pub struct StopCondition<'a> {
    step: u64,
    is_asked: Option<&'a dyn Fn() -> bool>,
}

impl From<u64> for StopCondition<'_> {
    /// To the end of this step.
    fn from(step: u64) -> Self {
        Self { step, is_asked: None }
    }
}

impl<'a> StopCondition<'a> {
    /// Or to the end of the step after which `is_asked` says yes: a signal has come, or time is up.
    #[must_use]
    pub fn or_when(self, is_asked: &'a dyn Fn() -> bool) -> Self {
        Self { is_asked: Some(is_asked), ..self }
    }

    fn is_asked(&self) -> bool {
        self.is_asked.is_some_and(|is_asked| is_asked())
    }
}

impl fmt::Debug for StopCondition<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StopCondition").field("step", &self.step).finish_non_exhaustive()
    }
}

/// Trains for as long as `until` says, or until early stopping ends the run; saves into
/// `checkpoints`, where there are to be any.
///
/// # Errors
/// Where the gradient of a step cannot be had, or is of no use, what was before is saved first.
pub fn fit<'a, T: Task>(
    session: &mut Session<T>,
    until: impl Into<StopCondition<'a>>,
    checkpoints: Option<&Checkpoints>,
    observers: &mut [Box<dyn Observer + '_>],
) -> Result<()> {
    let task = Arc::clone(&session.task);
    thread::scope(|scope| {
        let feed = if has_one_queue(session.params.device()) {
            Feed::ahead(&*task, scope)
        } else {
            Feed::at_once(&*task)
        };
        train(session, feed, &until.into(), checkpoints, observers)
    })
}

fn train<T: Task>(
    session: &mut Session<T>,
    mut feed: Feed<'_, '_, T>,
    until: &StopCondition<'_>,
    checkpoints: Option<&Checkpoints>,
    observers: &mut [Box<dyn Observer + '_>],
) -> Result<()> {
    let RunConfig { training, checkpoint, log, .. } = &session.config.clone();
    let total = training.steps;
    let last_step = until.step.min(total);
    session.tidy(checkpoints)?;
    let goes_back = matches!(training.bad_step, BadStep::RollBack(_));
    if goes_back && session.progress.guard.roll_back_to.is_none() {
        session.progress.guard.roll_back_to = Some(session.progress.step);
        session.save(checkpoints, observers)?;
    }
    let mut clock = Clock::start();
    let mut passes = Passes::of(session);
    // A run that early stopping has ended is over, however often it is resumed.
    while session.progress.step < last_step && !session.progress.early_stopping.has_stopped() {
        if until.is_asked() {
            return session.save_unless_saved(checkpoints, observers);
        }
        let prepared = session.prepare(&mut feed, &mut passes).inspect_err(|_| {
            // Of two errors the first is the one to be told.
            let _ = session.save_unless_saved(checkpoints, observers);
        });
        let prepared = prepared?;
        passes.tell(observers)?;
        let report = match prepared {
            Prepared::Update(update) => Some(session.update(update, &mut clock)?),
            Prepared::Skip(trouble) => {
                session.progress.step += 1;
                notify(observers, &Event::Skipped { bad_step: &trouble })?;
                None
            }
            Prepared::RollBack(trouble) => {
                session.roll_back(&trouble, checkpoints, observers)?;
                clock = Clock::start();
                continue;
            }
        };

        let step = session.progress.step;
        let due = |every: u64| step.is_multiple_of(every) || step == total;
        if let Some(report) = report.filter(|_| due(log.every)) {
            report.tell(step, &mut clock, observers)?;
        }
        let evaluates = due(training.evaluate_every);
        let verdict = evaluates.then(|| session.evaluate(observers)).transpose()?;
        let decisive = verdict.is_some_and(|verdict| verdict.is_best || verdict.stops());
        let is_due = decisive || due(checkpoint.every);
        let saves = is_due || step == last_step;
        if goes_back && is_due {
            session.progress.guard.roll_back_to = Some(step);
        }
        if saves {
            session.save(checkpoints, observers)?;
        }
        if saves || verdict.is_some() {
            clock = Clock::start();
        }
    }
    Ok(())
}

/// What a step is about to do. Nothing has been changed yet but what the guard remembers.
enum Prepared {
    Update(Update),
    Skip(BadStepReport),
    RollBack(BadStepReport),
}

/// A gradient that may be followed.
struct Update {
    gradients: Gradients,
    /// What clipping leaves of it.
    scale: f64,
    report: Report,
    n_tokens: Option<u64>,
}

/// What is known of a step.
struct Report {
    /// The mean; nothing where nothing was to be guessed.
    loss: Option<f64>,
    lr: f64,
    grad_norm: f64,
    /// What nobody has waited for.
    measures: Measures,
}

impl Report {
    /// Says what came of a step, and how fast it went since the last time; nothing where nothing was to
    /// be guessed.
    fn tell(
        &self,
        step: u64,
        clock: &mut Clock,
        observers: &mut [Box<dyn Observer + '_>],
    ) -> Result<()> {
        let Self { loss: Some(loss), lr, grad_norm, ref measures } = *self else { return Ok(()) };
        let Rates { examples_per_second, tokens_per_second } = clock.rates();
        let metrics = &measures.read()?.means();
        let report = StepReport {
            step,
            loss,
            lr,
            grad_norm,
            examples_per_second,
            tokens_per_second,
            metrics,
        };
        notify(observers, &Event::Step(report))
    }
}

impl<T: Task> Session<T> {
    /// The gradient of the next step, and what the guard says of it.
    fn prepare(&mut self, feed: &mut Feed<'_, '_, T>, passes: &mut Passes) -> Result<Prepared> {
        let step = self.progress.step;
        let RunConfig { training, schedule, optimizer, .. } = &self.config;
        let MicroBatch { gradients, measures, n_tokens, .. } =
            self.caught_gradients(feed, passes)?;
        // The norm is the last that a device is asked for, and the first that is waited for.
        let grad_norm = timed("norm of gradients", Pass::Neither, || gradients.norm())?;
        // Where nothing was to be guessed there is no loss and no gradient: the update moves nothing.
        let loss = measures.read_mean("loss")?;
        if step == 0 && loss.is_some_and(f64::is_finite) {
            audit(&gradients, &training.gradient_audit_exceptions)?;
        }
        let spike = training.loss_spike.as_ref();
        let verdict = self.progress.guard.judge(&training.bad_step, spike, loss, grad_norm);
        let trouble = |fault| self.trouble(fault, &gradients);
        match verdict {
            bad_step::Verdict::Stop(fault) => Err(Error::BadStep(trouble(fault))),
            bad_step::Verdict::Skip(fault) => Ok(Prepared::Skip(trouble(fault))),
            bad_step::Verdict::RollBack(fault) => Ok(Prepared::RollBack(trouble(fault))),
            bad_step::Verdict::Apply => {
                let rate = schedule.lr(step, training.steps, optimizer.peak_lr());
                let lr = rate * self.progress.guard.lr_factor;
                let report = Report { loss, lr, grad_norm, measures };
                let max_norm = training.max_grad_norm;
                let scale = max_norm.map_or(1., |max_norm| clip_factor(grad_norm, max_norm));
                Ok(Prepared::Update(Update { gradients, scale, report, n_tokens }))
            }
        }
    }

    /// The gradient of the next step. A panic on the way, in a thread or here, is an error: nothing has
    /// been changed, and what was learned before can be saved.
    fn caught_gradients(
        &self,
        feed: &mut Feed<'_, '_, T>,
        passes: &mut Passes,
    ) -> Result<MicroBatch> {
        let step = self.progress.step;
        let gradients = catch_unwind(AssertUnwindSafe(|| self.gradients(step, feed, passes)));
        gradients.unwrap_or_else(|panic| {
            Err(Error::Panicked { step: step + 1, message: message_of(&*panic) })
        })
    }

    /// Where a fault comes from: the batches, and the first tensor that is not finite.
    fn trouble(&self, fault: Fault, gradients: &Gradients) -> BadStepReport {
        let step = self.progress.step;
        let n_micro = self.config.training.micro_batches;
        let origin = match fault {
            // What is wrong with the step is to be told, even if where it comes from cannot be found.
            Fault::NotFinite { .. } => self.first_not_finite(gradients).ok().flatten(),
            Fault::Spike { .. } => None,
        };
        let batches = step * n_micro..(step + 1) * n_micro;
        BadStepReport { step: step + 1, fault, batches, origin }
    }

    fn first_not_finite(&self, gradients: &Gradients) -> Result<Option<String>> {
        for (name, parameter) in self.params.iter() {
            // In f64, where a sum of finite f32 is finite.
            let sum = parameter.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.sum_all()?;
            if !scalar(&sum)?.is_finite() {
                return Ok(Some(format!("the parameter `{name}`")));
            }
        }
        let mut feed = Feed::at_once(&*self.task);
        let mut passes = Passes::apart();
        let (again, origin) = first_not_finite(|| self.caught_gradients(&mut feed, &mut passes));
        again?;
        if let Some(origin) = origin {
            return Ok(Some(origin.to_string()));
        }
        let faults = gradients.audit()?;
        let first = faults.iter().find(|fault| fault.kind == FaultKind::NotFinite);
        Ok(first.map(|fault| format!("the gradient of `{}`", fault.name)))
    }

    /// Goes back to the last checkpoint that was due, and on from there more slowly.
    fn roll_back(
        &mut self,
        trouble: &BadStepReport,
        checkpoints: Option<&Checkpoints>,
        observers: &mut [Box<dyn Observer + '_>],
    ) -> Result<()> {
        let before = self.progress.guard.clone();
        let Some((checkpoints, to)) = checkpoints.zip(before.roll_back_to) else {
            return Err(Error::BadStep(trouble.clone()));
        };
        let last = match checkpoints.load(Selection::Step(to), self.params.device()) {
            Ok(last) => last,
            Err(error) => {
                let _ = self.save_unless_saved(Some(checkpoints), observers);
                return Err(error);
            }
        };
        self.restore(&last)?;
        let Progress { step, guard, .. } = &mut self.progress;
        *guard = before.rolled_back(&self.config.training.bad_step, std::mem::take(guard));
        let (number, lr_factor) = (guard.n_roll_backs, guard.lr_factor);
        notify(observers, &Event::RolledBack { bad_step: trouble, to: *step, number, lr_factor })
    }

    /// The mean gradient over all micro-batches of a step, and what was measured on the way.
    fn gradients(
        &self,
        step: u64,
        feed: &mut Feed<'_, '_, T>,
        passes: &mut Passes,
    ) -> Result<MicroBatch> {
        let n_micro = self.config.training.micro_batches;
        let mut sum = self.micro_batch(step, 0, feed, passes)?;
        for micro in 1..n_micro {
            let MicroBatch { gradients, measures, count, n_tokens } =
                self.micro_batch(step, micro, feed, passes)?;
            sum.gradients.accumulate(gradients)?;
            sum.measures.merge(measures);
            sum.count += count;
            sum.n_tokens = sum.n_tokens.zip(n_tokens).map(|(a, b)| a + b);
        }
        if sum.count > 0. && n_micro > 1 {
            sum.gradients.scale(1. / sum.count)?;
        }
        Ok(sum)
    }

    /// The first forward and backward pass in which there is anything to guess.
    pub(crate) fn first_micro_batch(&self) -> Result<MicroBatch> {
        let (mut feed, mut passes) = (Feed::at_once(&*self.task), Passes::apart());
        for step in 0..MAX_EMPTY {
            let batch = self.micro_batch(step, 0, &mut feed, &mut passes)?;
            if batch.count > 0. {
                return Ok(batch);
            }
        }
        let message =
            format!("there is nothing to guess in the first {MAX_EMPTY} batches of `task`");
        Err(Error::config(["task"], message))
    }

    /// Forward and backward, once.
    fn micro_batch(
        &self,
        step: u64,
        micro: u64,
        feed: &mut Feed<'_, '_, T>,
        passes: &mut Passes,
    ) -> Result<MicroBatch> {
        let RunConfig { seed, training, .. } = &self.config;
        let stream = Stream::new(*seed, Purpose::Dropout).fork(step).fork(micro);
        let number = step * training.micro_batches + micro;
        let batch = timed("batch", Pass::Neither, || feed.take(number))?;
        passes.make(self, feed, &batch, stream)
    }

    fn update(&mut self, update: Update, clock: &mut Clock) -> Result<Report> {
        let Update { gradients, scale, report, n_tokens } = update;
        timed("update", Pass::Neither, || -> Result<()> {
            self.optimizer.step_scaled(&gradients, scale, report.lr)?;
            self.params.refresh()?;
            self.progress.step += 1;
            match &mut self.ema {
                Some(ema) => ema.update(self.progress.step - self.progress.guard.n_skipped),
                None => Ok(()),
            }
        })?;
        let n_examples = self.task.batch_size() as u64 * self.config.training.micro_batches;
        clock.count(n_examples, n_tokens);
        Ok(report)
    }

    /// Evaluates, with averaged weights where there are any.
    fn evaluate(&mut self, observers: &mut [Box<dyn Observer + '_>]) -> Result<Verdict> {
        let Self { task, twin, ema, params, .. } = self;
        let shows_attention = self.config.log.tensorboard;
        let run = || -> Result<_> {
            let readings = if shows_attention { task.readings(twin)? } else { Vec::new() };
            Ok((evaluate(&**task, twin)?, readings))
        };
        let (metrics, readings) = match ema {
            Some(ema) => {
                let found = ema.with_averages(|| {
                    params.refresh()?;
                    run()
                });
                params.refresh()?;
                found?
            }
            None => run()?,
        };
        let metrics = metrics.means();
        let Progress { step, early_stopping, .. } = &mut self.progress;
        let event = Event::Evaluated { step: *step, split: "validation", metrics: &metrics };
        notify(observers, &event)?;
        if shows_attention {
            notify(observers, &Event::AttentionMaps { step: *step, maps: &readings })?;
        }
        let watched = early_stopping.metric();
        let Some(&value) = metrics.get(watched) else {
            return Err(unknown_metric(watched, &metrics));
        };
        let verdict = early_stopping.observe(*step, value);
        if verdict.stops() {
            let best = early_stopping.state().best;
            let metric = early_stopping.metric();
            notify(observers, &Event::EarlyStopped { step: *step, metric, best })?;
        }
        Ok(verdict)
    }

    fn save(
        &self,
        checkpoints: Option<&Checkpoints>,
        observers: &mut [Box<dyn Observer + '_>],
    ) -> Result<()> {
        let Some(checkpoints) = checkpoints else { return Ok(()) };
        let step = self.progress.step;
        notify(observers, &Event::CheckpointSaving { step })?;
        let path = checkpoints.save(&self.checkpoint())?;
        self.tidy(Some(checkpoints))?;
        notify(observers, &Event::CheckpointSaved { step, path: &path })
    }

    /// Saves, unless this step is the last that was saved, or nothing has been learned yet.
    fn save_unless_saved(
        &self,
        checkpoints: Option<&Checkpoints>,
        observers: &mut [Box<dyn Observer + '_>],
    ) -> Result<()> {
        match checkpoints {
            Some(saved) if saved.latest()?.unwrap_or(0) != self.progress.step => {
                self.save(checkpoints, observers)
            }
            _ => Ok(()),
        }
    }

    /// Does what a crash may have kept from being done after the last checkpoint was saved.
    fn tidy(&self, checkpoints: Option<&Checkpoints>) -> Result<()> {
        self.mark_best(checkpoints)?;
        if let Some(checkpoints) = checkpoints {
            checkpoints.prune(self.config.checkpoint.keep_last)?;
        }
        Ok(())
    }

    /// Points `best` at the best evaluation's checkpoint.
    fn mark_best(&self, checkpoints: Option<&Checkpoints>) -> Result<()> {
        match (checkpoints, self.progress.early_stopping.state().best) {
            (Some(checkpoints), Some(best)) if checkpoints.contains(best.step) => {
                checkpoints.mark_best(best.step)
            }
            _ => Ok(()),
        }
    }
}

/// What a panic said.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
