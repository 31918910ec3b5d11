//! Runs a check with the task of a configuration, whatever its kind.

use tealight_ops::testing::device;
use tealight_train::RunConfig;
use tealight_train::task::Task;

use crate::common::Result;

/// A check.
pub(crate) trait ForAnyTask {
    /// What it returns.
    type Answer;

    /// Runs it.
    fn ask<T: Task>(&self, config: &RunConfig, task: T) -> Result<Self::Answer>;
}

/// Runs the check with the task of `config` and its data.
pub(crate) fn with_task<Q: ForAnyTask>(config: &RunConfig, question: &Q) -> Result<Q::Answer> {
    question.ask(config, config.task.build(&config.task_context(device()))?)
}
