//! Checks of a run before its first step, of faults that would otherwise end it later.
//!
//! [`Session::check`] makes those that every run must pass: the device, the gradients, the metric of early stopping.
//! `tealight doctor` also looks for leaks through masks and lets the model overfit one batch; its results are
//! [`Finding`]s.

use candle_core::Device;
use candle_nn::VarBuilder;
use tealight_model::cost::Estimate;
use tealight_model::leaks::first_leak;
use tealight_model::{Mode, ModelConfig, Reads};

use super::fit::fit;
use super::forward_backward::ForwardBackward;
use super::pass::Pass;
use super::session::Session;
use crate::config::RunConfig;
use crate::error::{Error, Result};
use crate::monitor::early_stopping::{METRIC, unknown_metric};
use crate::monitor::gradient_audit::audit;
use crate::optimizer::schedule::{Constant, ScheduleConfig};
use crate::task::metrics::scalar;
use crate::task::{Evaluated, Inputs, Loss, Split, Task};
use crate::trained::TrainedModel;

/// Batches at the beginning of a run in which no item may carry a loss.
const MAX_EMPTY_BATCHES: u64 = 100;

/// The least relative decrease that counts as learning.
const LEAST_FALL: f64 = 0.1;

impl<T: Task> Session<T> {
    /// Checks that the device can do what the configuration asks for, that every parameter has a gradient, and that
    /// early stopping watches a metric that exists.
    pub fn check(&self) -> Result<()> {
        self.check_gradients()?;
        self.check_metric()
    }

    /// Checks that every parameter has a gradient, and counts them.
    fn check_gradients(&self) -> Result<usize> {
        let Pass { gradients, .. } = self.first_pass()?;
        audit(&gradients, &self.config.gradient_audit_exceptions())?;
        Ok(gradients.iter().count())
    }

    fn check_device(&self) -> Result<()> {
        let device = self.params.device();
        let can_recompute = device.is_cpu() || device.is_cuda();
        if self.config.training.activation_checkpointing && !can_recompute {
            let key = "training.activation_checkpointing";
            let message = format!("`{key}` works on CPUs and NVIDIA GPUs only; leave it out");
            return Err(Error::config([key], message));
        }
        Ok(())
    }

    /// Forward and backward over the first batch in which an item carries a loss, if the device can do what the
    /// configuration asks for.
    fn first_pass(&self) -> Result<Pass> {
        self.check_device()?;
        let mut eager = ForwardBackward::eager(&*self.task);
        for step in 0..MAX_EMPTY_BATCHES {
            let pass = eager.micro_batch(self, step, 0, None)?;
            if pass.count > 0. {
                return Ok(pass);
            }
        }
        let message = format!(
            "there is nothing to predict in the first {MAX_EMPTY_BATCHES} batches of `task`"
        );
        Err(Error::config(["task"], message))
    }

    /// Checks that the task measures the metrics of early stopping and of the best checkpoint.
    pub fn check_metric(&self) -> Result<()> {
        let Self { config, task, eval_model, .. } = self;
        let stopping = config.training.early_stopping.as_ref().map(|one| (METRIC, &one.metric));
        let best = config.checkpoint.metric.as_ref().map(|metric| ("checkpoint.metric", metric));
        let wanted: Vec<(&str, &String)> = stopping.into_iter().chain(best).collect();
        if wanted.is_empty() {
            return Ok(());
        }
        let batch = task.batch(Split::Validation, 0)?;
        let Evaluated { measures, outputs } = task.evaluate_batch(eval_model, &batch)?;
        let mut metrics = measures.read()?;
        metrics.merge(&task.score(&outputs));
        if wanted.iter().any(|(_, metric)| metrics.mean(metric).is_none()) {
            metrics.merge(&task.measure(eval_model)?);
        }
        let metrics = metrics.means();
        match wanted.into_iter().find(|(_, metric)| !metrics.contains_key(*metric)) {
            None => Ok(()),
            Some((key, metric)) => Err(unknown_metric(key, metric, &metrics)),
        }
    }
}

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The name of the check.
    pub check: &'static str,
    /// Whether it passed.
    pub is_fine: bool,
    /// The explanation.
    pub text: String,
}

impl Finding {
    fn new(check: &'static str, is_fine: bool, text: impl Into<String>) -> Self {
        Self { check, is_fine, text: text.into() }
    }
}

/// Checks that every parameter has a gradient.
pub fn gradients<T: Task>(session: &Session<T>) -> Result<Finding> {
    match session.check_gradients() {
        Ok(n) => Ok(Finding::new("gradients", true, format!("all {n} parameters have one"))),
        Err(error @ Error::GradientAudit(_)) => {
            Ok(Finding::new("gradients", false, error.to_string()))
        }
        Err(error) => Err(error),
    }
}

/// Checks that no position depends on padding, nor, in a causal stack, on later positions.
pub fn masks(config: &RunConfig, seq_len: usize) -> Result<Finding> {
    let sides = config.task.settings().reads(&config.model);
    let leaks = sides.iter().map(|reads| first_leak(&config.model, *reads, seq_len));
    let leak = leaks.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().next();
    let what = if sides.contains(&Reads::Past) { "the future or padding" } else { "padding" };
    Ok(match leak {
        None => {
            Finding::new("masks", true, format!("no position of the backbone depends on {what}"))
        }
        Some(leak) => Finding::new("masks", false, leak.to_string()),
    })
}

/// Checks that the loss of one batch falls within `steps` updates at a constant learning rate, without dropout,
/// starting from `begins_with` if given.
pub fn one_batch<T: Task>(
    config: &RunConfig,
    task: &T,
    begins_with: Option<&TrainedModel>,
    steps: u64,
    device: &Device,
) -> Result<Finding> {
    let mut config = config.clone();
    config.model.dropout = 0.;
    config.schedule = ScheduleConfig::Constant(Constant::default());
    config.training.steps = steps;
    config.training.evaluate_every = steps;
    config.training.micro_batches = 1;
    config.training.ema_decay = None;
    config.training.early_stopping = None;
    config.teacher = None;
    config.checkpoint.metric = None;
    config.checkpoint.direction = None;
    let mut session = Session::new(&config, OneBatch(task), device)?;
    if let Some(model) = begins_with {
        session.begin_with(model)?;
    }
    let batch = session.task.batch(Split::Train, 0)?;
    let loss = |session: &Session<OneBatch<'_, T>>| -> Result<f64> {
        let Loss { sum, count, .. } = session.task.loss(&session.eval_model, &batch, Mode::Eval)?;
        Ok(scalar(&sum)? / count)
    };
    let before = loss(&session)?;
    if !before.is_finite() {
        return Ok(Finding::new(
            "learning",
            true,
            "there is nothing to predict in the first batch",
        ));
    }
    if let Err(error) = fit(&mut session, steps, None, &mut []) {
        return Ok(Finding::new("learning", false, error.to_string()));
    }
    let after = loss(&session)?;
    let has_fallen = after < before * (1. - LEAST_FALL);
    let text = format!("loss {before:.4} → {after:.4} in {steps} steps on one batch");
    Ok(Finding::new("learning", has_fallen, text))
}

/// A task that returns its first batch for every index.
#[derive(Debug)]
pub struct OneBatch<'a, T>(pub &'a T);

impl<T: Task> Task for OneBatch<'_, T> {
    type Model = T::Model;
    type Batch = T::Batch;

    fn build_model(&self, config: &ModelConfig, vb: &VarBuilder<'_>) -> Result<Self::Model> {
        self.0.build_model(config, vb)
    }

    fn batch(&self, split: Split, _: u64) -> Result<Self::Batch> {
        self.0.batch(split, 0)
    }

    fn n_evaluation_batches(&self) -> u64 {
        1
    }

    fn seq_len(&self) -> usize {
        self.0.seq_len()
    }

    fn estimate(&self, config: &ModelConfig) -> Estimate {
        self.0.estimate(config)
    }

    fn inputs<'a>(&self, batch: &'a T::Batch) -> Inputs<'a> {
        self.0.inputs(batch)
    }

    fn loss(&self, model: &Self::Model, batch: &Self::Batch, mode: Mode) -> Result<Loss> {
        self.0.loss(model, batch, mode)
    }
}
