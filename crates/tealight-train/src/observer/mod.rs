//! Observers are told what happens in a run; they cannot steer it.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::BadStepReport;
use crate::error::{Error, Result};
use crate::monitor::early_stopping::Best;
use crate::task::attention_map::AttentionMap;

pub mod jsonl;
pub mod tensorboard;

/// Draws, counts or writes what it is told.
pub trait Observer {
    /// Takes note of `event`. An error ends the run: a disk that is full must not stay unnoticed.
    fn observe(&mut self, event: &Event<'_>) -> Result<()>;
}

/// Tells every observer, in order; the first error is returned.
pub fn notify(observers: &mut [Box<dyn Observer + '_>], event: &Event<'_>) -> Result<()> {
    observers.iter_mut().try_for_each(|observer| observer.observe(event))
}

/// What happens in a run. A `step` is the number of updates that are done.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// The first update is about to be made, or the first after resuming.
    RunStarted {
        /// The run's directory; `None` if the run keeps nothing.
        directory: Option<&'a Path>,
        /// Updates done before: 0, or the step of the checkpoint.
        step: u64,
        /// Updates when the run is complete.
        total_steps: u64,
        /// Scalars in all parameters.
        n_parameters: usize,
    },
    /// An update has been made that is to be logged.
    Step(StepReport<'a>),
    /// The model has been evaluated.
    Evaluated {
        /// After how many updates.
        step: u64,
        /// On which data, such as `validation`.
        split: &'a str,
        /// The results by name, `loss` among them.
        metrics: &'a BTreeMap<String, f64>,
    },
    /// What the evaluated model read in the first validation example; told where `[log]` asks for it.
    Attended {
        /// After how many updates.
        step: u64,
        /// Attention by attention.
        maps: &'a [AttentionMap],
    },
    /// A checkpoint is about to be written: what was told before it must be on disk first.
    CheckpointSaving {
        /// After how many updates.
        step: u64,
    },
    /// A checkpoint is complete on disk.
    CheckpointSaved {
        /// After how many updates.
        step: u64,
        /// Its directory.
        path: &'a Path,
    },
    /// The pass of a step has been recorded: from now on it is asked for as a whole (`training.cuda_graphs`).
    Recorded,
    /// Passes are made one by one, although they were to be recorded (`training.cuda_graphs`).
    NotRecorded {
        /// What stands in the way.
        why: &'a Error,
    },
    /// A step was passed over: the model is as it was.
    Skipped {
        /// What was wrong with it.
        trouble: &'a BadStepReport,
    },
    /// The run has gone back to a checkpoint: what was told of later steps has not happened.
    RolledBack {
        /// What was wrong.
        trouble: &'a BadStepReport,
        /// The checkpoint's step.
        to: u64,
        /// How often the run has gone back, this time included.
        number: u64,
        /// What the learning rate is multiplied with from now on.
        lr_factor: f64,
    },
    /// The run ends before its last step because evaluations have stopped improving.
    EarlyStopped {
        /// After how many updates.
        step: u64,
        /// The metric that was watched.
        metric: &'a str,
        /// The best evaluation, if any was finite.
        best: Option<Best>,
    },
    /// The run is over.
    Finished {
        /// Updates done.
        step: u64,
        /// Wall-clock time since [`Event::RunStarted`].
        seconds: f64,
    },
}

/// What is known after an update: the loss and metrics of this update alone, and rates since the
/// report before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport<'a> {
    /// Updates done.
    pub step: u64,
    /// The training loss of this update: the mean over its micro-batches.
    pub loss: f64,
    /// The learning rate of this update.
    pub lr: f64,
    /// The norm of all gradients together, before clipping.
    pub grad_norm: f64,
    /// Training examples per second.
    pub examples_per_second: f64,
    /// Tokens per second, for tasks that count tokens.
    pub tokens_per_second: Option<f64>,
    /// The metrics of this update by name, `loss` and the task's own.
    pub metrics: &'a BTreeMap<String, f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    struct Recorder<'a>(&'a std::cell::RefCell<Vec<u64>>, u64);

    impl Observer for Recorder<'_> {
        fn observe(&mut self, _: &Event<'_>) -> Result<()> {
            self.0.borrow_mut().push(self.1);
            if self.1 == 2 { Err(Error::config(["a"], "no")) } else { Ok(()) }
        }
    }

    #[test]
    fn observers_are_told_in_order_until_one_fails() {
        let heard = std::cell::RefCell::default();
        let mut observers: Vec<Box<dyn Observer + '_>> = Vec::new();
        for name in [1, 2, 3] {
            observers.push(Box::new(Recorder(&heard, name)));
        }
        assert!(notify(&mut observers, &Event::Finished { step: 5, seconds: 0.5 }).is_err());
        assert_eq!(*heard.borrow(), [1, 2]);
    }
}
