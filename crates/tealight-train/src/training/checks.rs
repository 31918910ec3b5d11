//! Checks before the first step, of faults that would otherwise end a run later.

use tealight_model::Mode;

use super::forward_backward::ForwardBackward;
use super::pass::Pass;
use super::session::Session;
use crate::data::Split;
use crate::error::{Error, Result};
use crate::monitor::early_stopping;
use crate::monitor::gradient_audit::audit;
use crate::task::Task;

/// Batches at the beginning of a run in which no item may carry a loss.
const MAX_EMPTY_BATCHES: u64 = 100;

impl<T: Task> Session<T> {
    /// Checks that the device can do what the configuration asks for, that every parameter has a gradient, and that
    /// early stopping watches a metric that exists.
    pub fn check(&self) -> Result<()> {
        let Pass { gradients, .. } = self.first_pass()?;
        audit(&gradients, &self.config.training.gradient_audit_exceptions)?;
        self.check_metric()
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
    pub(crate) fn first_pass(&self) -> Result<Pass> {
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

    /// Checks that the task measures the metric of early stopping.
    pub fn check_metric(&self) -> Result<()> {
        let Self { config, task, eval_model, .. } = self;
        let Some(stopping) = &config.training.early_stopping else { return Ok(()) };
        let loss = task.loss(eval_model, &task.batch(Split::Validation, 0)?, Mode::Eval)?;
        let mut metrics = loss.measures().read()?;
        if metrics.mean(&stopping.metric).is_none() {
            metrics.merge(&task.measure(eval_model)?);
        }
        let metrics = metrics.means();
        if metrics.contains_key(&stopping.metric) {
            return Ok(());
        }
        Err(early_stopping::unknown_metric(&stopping.metric, &metrics))
    }
}
