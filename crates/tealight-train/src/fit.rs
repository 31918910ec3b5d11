//! The loop: gradient, update, and now and then a look at what came of it.

use std::time::Instant;

use tealight_model::Mode;
use tealight_ops::profile::{Pass, timed};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::{Gradients, backward_scaled};

use crate::audit::audit;
use crate::config::RunConfig;
use crate::early_stopping::{Verdict, unknown_metric};
use crate::error::Result;
use crate::evaluate::{evaluate, scalar};
use crate::observer::{Event, Observer, StepReport, notify};
use crate::run::Checkpoints;
use crate::session::{Progress, Session};
use crate::task::{Loss, Split, Task};
use crate::{Error, Metrics};

/// So many batches in a row may have nothing to guess at the beginning of a run.
const MAX_EMPTY: u64 = 100;

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
    session.mark_best(checkpoints)?;
    let mut clock = Clock::start();
    // A run that early stopping has ended is over, however often it is resumed.
    while session.progress.step < last_step && !session.progress.early_stopping.has_stopped() {
        let step = session.progress.step;
        let MicroBatch { mut gradients, metrics, n_tokens, .. } = session.gradients(step)?;
        // Where nothing was to be guessed there is no loss and no gradient: the update moves nothing.
        let loss = metrics.mean("loss");
        must_be_finite(step + 1, "loss", loss.unwrap_or(0.))?;
        if step == 0 && loss.is_some() {
            audit(&gradients, &training.gradient_audit_exceptions)?;
        }
        let grad_norm =
            timed("norm of gradients", Pass::Neither, || match training.max_grad_norm {
                Some(max_norm) => gradients.clip(max_norm),
                None => gradients.norm(),
            })?;
        must_be_finite(step + 1, "gradient norm", grad_norm)?;
        let lr = schedule.lr(step, total, optimizer.peak_lr());
        timed("update", Pass::Neither, || session.update(&gradients, lr))?;
        clock.count(session.task.batch_size() as u64 * training.micro_batches, n_tokens);

        let step = session.progress.step;
        let due = |every: u64| step.is_multiple_of(every) || step == total;
        if let Some(loss) = loss.filter(|_| due(log.every)) {
            let Rates { examples_per_second, tokens_per_second } = clock.rates();
            let metrics = &metrics.means();
            let report = StepReport {
                step,
                loss,
                lr,
                grad_norm,
                examples_per_second,
                tokens_per_second,
                metrics,
            };
            notify(observers, &Event::Step(report))?;
        }
        let evaluates = due(training.evaluate_every);
        let verdict = evaluates.then(|| session.evaluate(observers)).transpose()?;
        let decisive = verdict.is_some_and(|verdict| verdict.is_best || verdict.stops());
        let saves = decisive || due(checkpoint.every) || step == last_step;
        if saves {
            session.save(checkpoints, observers)?;
        }
        if saves || verdict.is_some() {
            clock = Clock::start();
        }
    }
    Ok(())
}

impl<T: Task> Session<T> {
    /// The mean gradient over all micro-batches of a step, and what was measured on the way.
    fn gradients(&self, step: u64) -> Result<MicroBatch> {
        let n_micro = self.config.training.micro_batches;
        let mut sum = self.micro_batch(step, 0)?;
        for micro in 1..n_micro {
            let MicroBatch { gradients, metrics, count, n_tokens } =
                self.micro_batch(step, micro)?;
            sum.gradients.accumulate(gradients)?;
            sum.metrics.merge(&metrics);
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
        for step in 0..MAX_EMPTY {
            let batch = self.micro_batch(step, 0)?;
            if batch.count > 0. {
                return Ok(batch);
            }
        }
        let message =
            format!("there is nothing to guess in the first {MAX_EMPTY} batches of `task`");
        Err(Error::config(["task"], message))
    }

    /// Forward and backward, once.
    fn micro_batch(&self, step: u64, micro: u64) -> Result<MicroBatch> {
        let RunConfig { seed, training, .. } = &self.config;
        let stream = Stream::new(*seed, Purpose::Dropout).fork(step).fork(micro);
        let activations = training.activations();
        let number = step * training.micro_batches + micro;
        let batch = timed("batch", Pass::Neither, || self.task.batch(Split::Train, number))?;
        let n_tokens = self.task.n_tokens(&batch);
        let Loss { sum, count, mut metrics } =
            self.task.loss(&self.model, &batch, Mode::Train { stream, activations })?;
        metrics.add("loss", scalar(&sum)?, count);
        let variables: Vec<_> = self.params.trained().collect();
        let named = variables.iter().map(|(name, variable)| (name.as_str(), &**variable));
        let is_whole = training.micro_batches == 1 && count > 0.;
        let factor = if is_whole { 1. / count } else { 1. };
        let gradients = backward_scaled(&sum, factor, named)?;
        Ok(MicroBatch { gradients, metrics, count, n_tokens })
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
    fn evaluate(&mut self, observers: &mut [Box<dyn Observer + '_>]) -> Result<Verdict> {
        let Self { task, twin, ema, .. } = self;
        let shows_attention = self.config.log.tensorboard;
        let run = || -> Result<_> {
            let readings = if shows_attention { task.readings(twin)? } else { Vec::new() };
            Ok((evaluate(task, twin)?, readings))
        };
        let (metrics, readings) = match ema {
            Some(ema) => ema.with_averages(run)?,
            None => run()?,
        };
        let metrics = metrics.means();
        let Progress { step, early_stopping } = &mut self.progress;
        let event = Event::Evaluated { step: *step, split: "validation", metrics: &metrics };
        notify(observers, &event)?;
        if shows_attention {
            notify(observers, &Event::Attended { step: *step, readings: &readings })?;
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
        self.mark_best(Some(checkpoints))?;
        checkpoints.prune(self.config.checkpoint.keep_last)?;
        notify(observers, &Event::CheckpointSaved { step, path: &path })
    }

    /// Points `best` at the best evaluation's checkpoint. A crash may have come between the two.
    fn mark_best(&self, checkpoints: Option<&Checkpoints>) -> Result<()> {
        match (checkpoints, self.progress.early_stopping.state().best) {
            (Some(checkpoints), Some(best)) if checkpoints.contains(best.step) => {
                checkpoints.mark_best(best.step)
            }
            _ => Ok(()),
        }
    }
}

fn must_be_finite(step: u64, what: &'static str, value: f64) -> Result<()> {
    if value.is_finite() { Ok(()) } else { Err(Error::NotFinite { step, what, value }) }
}

/// What came of one forward and backward pass, or of all those of a step.
#[derive(Debug)]
pub(crate) struct MicroBatch {
    /// Of the sum of the losses; of their mean, if this is all of a step.
    pub(crate) gradients: Gradients,
    /// What was measured on the way.
    metrics: Metrics,
    /// How many items carry a loss.
    count: f64,
    /// How many tokens were read, where the task counts them.
    n_tokens: Option<u64>,
}

/// Examples and tokens of training since the last report. Evaluations and checkpoints start it anew, so
/// that their time does not count.
struct Clock {
    since: Instant,
    examples: u64,
    tokens: Option<u64>,
}

struct Rates {
    examples_per_second: f64,
    tokens_per_second: Option<f64>,
}

impl Clock {
    fn start() -> Self {
        Self { since: Instant::now(), examples: 0, tokens: Some(0) }
    }

    fn count(&mut self, examples: u64, tokens: Option<u64>) {
        self.examples += examples;
        self.tokens = self.tokens.zip(tokens).map(|(a, b)| a + b);
    }

    /// The rates since the last time they were asked for.
    fn rates(&mut self) -> Rates {
        let seconds = self.since.elapsed().as_secs_f64().max(f64::EPSILON);
        let per_second = |n: u64| n as f64 / seconds;
        let rates = Rates {
            examples_per_second: per_second(self.examples),
            tokens_per_second: self.tokens.map(per_second),
        };
        *self = Self::start();
        rates
    }
}
