//! Checks that are generic over tasks, applied to the task of a configuration.

use tealight_ops::testing::device;
use tealight_train::RunConfig;
use tealight_train::task::causal_lm::CausalLm;
use tealight_train::task::classify::Classify;
use tealight_train::task::listops::ListOps;
use tealight_train::task::masked_lm::MaskedLm;
use tealight_train::task::seq2seq::Seq2Seq;
use tealight_train::task::weather::Weather;
use tealight_train::task::{Preparing, Task, TaskConfig};

use crate::common::Result;

/// A check that is generic over tasks.
pub(crate) trait ForAnyTask {
    /// The result.
    type Answer;

    /// Runs the check on a task.
    fn ask<T: Task>(&self, config: &RunConfig, task: T) -> Result<Self::Answer>;
}

/// Runs the check on the task of `config`, with its data.
pub(crate) fn with_task<Q: ForAnyTask>(config: &RunConfig, question: &Q) -> Result<Q::Answer> {
    let RunConfig { seed, training, .. } = config;
    let device = device();
    match &config.task {
        TaskConfig::Weather(weather) => {
            question.ask(config, Weather::new(weather, *seed, training.batch_size, device)?)
        }
        TaskConfig::Seq2Seq(seq2seq) => {
            question.ask(config, Seq2Seq::new(seq2seq, *seed, training.batch_size, device)?)
        }
        TaskConfig::ListOps(listops) => {
            question.ask(config, ListOps::new(listops, *seed, training.batch_size, device)?)
        }
        TaskConfig::MaskedLm(task) => {
            let task = MaskedLm::new(task, config, device, Preparing::default())?;
            question.ask(config, task)
        }
        TaskConfig::CausalLm(task) => {
            let task = CausalLm::new(task, config, device, Preparing::default())?;
            question.ask(config, task)
        }
        TaskConfig::Classify(classify) => {
            question.ask(config, Classify::new(classify, config, device, None)?)
        }
    }
}
