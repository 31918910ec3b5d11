//! The loop: gradient, update, and now and then a look at what came of it.

use std::collections::BTreeMap;
use std::time::Instant;

use tealight_model::Mode;
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::{Gradients, backward};

use crate::audit::audit;
use crate::config::RunConfig;
use crate::early_stopping::Verdict;
use crate::error::Result;
use crate::evaluate::{evaluate, scalar};
use crate::observer::{Event, Observer, StepReport, notify};
use crate::run::Checkpoints;
use crate::session::{Progress, Session};
use crate::task::{Split, Task};
use crate::{Error, Metrics};

/// Trains up to `last_step`, or until early stopping ends the run; saves into
/// `checkpoints`, where there are to be any.
pub fn fit<T: Task>(
    session: &mut Session<T>,
    last_step: u64,
    checkpoints: Option<&Checkpoints>,
    observers: &mut [Box<dyn Observer + '_>],
) -> Result<()> {
    let RunConfig { training, schedule, checkpoint, log, optimizer, .. } = &session.config.clone();
    let total = training.steps;
    let last_step = last_step.min(total);
    let mut clock = Clock::start();
    while session.progress.step < last_step && !session.progress.early_stopping.is_over() {
        let step = session.progress.step;
        let (mut gradients, metrics) = session.gradients(step)?;
        must_be_finite(step + 1, "loss", metrics.mean("loss").unwrap_or(f64::NAN))?;
        if step == 0 {
            audit(&gradients, &training.gradient_audit_exceptions)?;
        }
        let grad_norm = match training.max_grad_norm {
            Some(max_norm) => gradients.clip(max_norm)?,
            None => gradients.norm()?,
        };
        must_be_finite(step + 1, "gradient norm", grad_norm)?;
        let lr = schedule.lr(step, total, optimizer.peak_lr());
        session.update(&gradients, lr)?;
        clock.count(session.task.batch_size() as u64 * training.micro_batches);

        let step = session.progress.step;
        let due = |every: u64| step.is_multiple_of(every) || step == total;
        if due(log.every) {
            let rate = clock.rate();
            notify(observers, &Event::Step(report(step, lr, grad_norm, rate, &metrics.means())))?;
        }
        let verdict =
            if due(training.evaluate_every) { session.evaluate(observers)? } else { None };
        let decisive = matches!(verdict, Some(Verdict::Improved | Verdict::Stop));
        if decisive || due(checkpoint.every) || step == last_step {
            session.save(checkpoints, verdict, observers)?;
        }
        if verdict.is_some() {
            clock = Clock::start();
        }
    }
    Ok(())
}

impl<T: Task> Session<T> {
    /// The mean gradient over all micro-batches of a step, and what was measured on the way.
    fn gradients(&self, step: u64) -> Result<(Gradients, Metrics)> {
        let RunConfig { seed, training, .. } = &self.config;
        let stream = Stream::new(*seed, Purpose::Dropout).fork(step);
        let mut metrics = Metrics::default();
        let mut sum: Option<Gradients> = None;
        let mut count = 0.;
        for micro in 0..training.micro_batches {
            let batch = self.task.batch(Split::Train, step * training.micro_batches + micro)?;
            let loss = self.task.loss(&self.model, &batch, Mode::Train(stream.fork(micro)))?;
            metrics.add("loss", scalar(&loss.sum)?, loss.count);
            metrics.merge(&loss.metrics);
            count += loss.count;
            let variables: Vec<_> = self.params.iter().collect();
            let named = variables.iter().map(|(name, variable)| (name.as_str(), &**variable));
            let gradients = backward(&loss.sum, named)?;
            match &mut sum {
                None => sum = Some(gradients),
                Some(sum) => sum.accumulate(gradients)?,
            }
        }
        let mut gradients = sum.expect("invariant: `validate` refuses zero micro-batches");
        gradients.scale(1. / count)?;
        Ok((gradients, metrics))
    }

    fn update(&mut self, gradients: &Gradients, lr: f64) -> Result<()> {
        self.optimizer.step(gradients, lr)?;
        self.progress.step += 1;
        match &mut self.ema {
            Some(ema) => ema.update(self.progress.step),
            None => Ok(()),
        }
    }

    /// Evaluates, with averaged weights where there are any.
    fn evaluate(&mut self, observers: &mut [Box<dyn Observer + '_>]) -> Result<Option<Verdict>> {
        let Self { task, twin, ema, .. } = self;
        let run = || evaluate(task, twin, Split::Validation);
        let metrics = match ema {
            Some(ema) => ema.with_averages(run)?,
            None => run()?,
        };
        let metrics = metrics.means();
        let Progress { step, early_stopping } = &mut self.progress;
        let event = Event::Evaluated { step: *step, split: "validation", metrics: &metrics };
        notify(observers, &event)?;
        let watched = early_stopping.metric();
        let Some(&value) = metrics.get(watched) else {
            return Err(unknown_metric(watched, &metrics));
        };
        let verdict = early_stopping.observe(*step, value);
        if verdict == Verdict::Stop {
            let best = early_stopping.state().best;
            let metric = early_stopping.metric();
            notify(observers, &Event::EarlyStopped { step: *step, metric, best })?;
        }
        Ok(Some(verdict))
    }

    fn save(
        &self,
        checkpoints: Option<&Checkpoints>,
        verdict: Option<Verdict>,
        observers: &mut [Box<dyn Observer + '_>],
    ) -> Result<()> {
        let Some(checkpoints) = checkpoints else { return Ok(()) };
        let path = checkpoints.save(&self.checkpoint())?;
        let step = self.progress.step;
        if verdict == Some(Verdict::Improved) {
            checkpoints.mark_best(step)?;
        }
        checkpoints.prune(self.config.checkpoint.keep_last)?;
        notify(observers, &Event::CheckpointSaved { step, path: &path })
    }
}

fn must_be_finite(step: u64, what: &'static str, value: f64) -> Result<()> {
    if value.is_finite() { Ok(()) } else { Err(Error::NotFinite { step, what, value }) }
}

fn unknown_metric(metric: &str, known: &BTreeMap<String, f64>) -> Error {
    let known: Vec<_> = known.keys().map(|name| format!("`{name}`")).collect();
    let key = "training.early_stopping.metric";
    let message = format!("`{key}` = \"{metric}\": an evaluation gives {}", known.join(", "));
    Error::config([key], message)
}

fn report(
    step: u64,
    lr: f64,
    grad_norm: f64,
    examples_per_second: f64,
    metrics: &BTreeMap<String, f64>,
) -> StepReport<'_> {
    let loss = metrics.get("loss").copied().unwrap_or(f64::NAN);
    StepReport { step, loss, lr, grad_norm, examples_per_second, tokens_per_second: None, metrics }
}

/// Examples per second of training, not counting evaluations and checkpoints.
struct Clock {
    since: Instant,
    examples: u64,
}

impl Clock {
    fn start() -> Self {
        Self { since: Instant::now(), examples: 0 }
    }

    fn count(&mut self, examples: u64) {
        self.examples += examples;
    }

    /// The rate since the last time it was asked for.
    fn rate(&mut self) -> f64 {
        let rate = self.examples as f64 / self.since.elapsed().as_secs_f64().max(f64::EPSILON);
        *self = Self::start();
        rate
    }
}
