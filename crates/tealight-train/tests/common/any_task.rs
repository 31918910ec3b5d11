//! Runs a check with the task of a configuration, whatever its kind.

use tealight_ops::testing::device;
use tealight_train::RunConfig;
use tealight_train::task::{RegisteredTask, Task, TaskVisitor};

use crate::common::Result;

/// A check.
pub(crate) trait ForAnyTask {
    /// What it returns.
    type Answer;

    /// Runs it.
    fn ask<T: Task>(&self, config: &RunConfig, task: T) -> Result<Self::Answer>;
}

struct Asking<'a, Q> {
    config: &'a RunConfig,
    question: &'a Q,
}

impl<Q: ForAnyTask> TaskVisitor for Asking<'_, Q> {
    type Output = Result<Q::Answer>;

    fn visit<T: RegisteredTask>(self, task: T) -> Self::Output {
        self.question.ask(self.config, task)
    }
}

/// Runs the check with the task of `config` and its data.
pub(crate) fn with_task<Q: ForAnyTask>(config: &RunConfig, question: &Q) -> Result<Q::Answer> {
    config.task.build(&config.task_context(device()), Asking { config, question })?
}
