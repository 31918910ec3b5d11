//! Observers: they receive the events of a run and cannot change its course.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::{BadStepReport, Error, Result};
use crate::inference::attention_map::AttentionMap;
use crate::monitor::early_stopping::Best;
use crate::task::sample::Sample;

pub mod jsonl;
pub mod samples;
pub mod tensorboard;

/// Receives the events of a run, for example to write or to display them.
pub trait Observer {
    /// Handles `event`. An error ends the run, so that a full disk does not go unnoticed.
    fn observe(&mut self, event: &Event<'_>) -> Result<()>;
}

/// The observers of a run.
pub type Observers<'a> = [Box<dyn Observer + 'a>];

/// Passes `event` to every observer, in order, until one returns an error.
pub fn notify(observers: &mut Observers<'_>, event: &Event<'_>) -> Result<()> {
    observers.iter_mut().try_for_each(|observer| observer.observe(event))
}

/// An event of a run. `step` is the number of updates done.
#[derive(Clone, Copy, Debug)]
pub enum Event<'a> {
    /// Training starts or resumes.
    RunStarted {
        /// The run's directory; `None` if the run writes no files.
        directory: Option<&'a Path>,
        /// 0, or the step of the checkpoint.
        step: u64,
        /// Number of updates of the whole run.
        total_steps: u64,
        /// Number of scalars in all parameters.
        n_parameters: usize,
    },
    /// An update was applied whose metrics are logged.
    Step(StepReport<'a>),
    /// The model was evaluated.
    Evaluated {
        /// Number of updates done.
        step: u64,
        /// The evaluated data, such as `validation`.
        split: &'a str,
        /// The metrics by name, including `loss`.
        metrics: &'a BTreeMap<String, f64>,
    },
    /// What a user should know about the metrics of the evaluation.
    Remark {
        /// Number of updates done.
        step: u64,
        /// A line. A remark may come again at later evaluations.
        text: &'a str,
    },
    /// The attention maps of the evaluated model for the first validation example, if `[log]` enables them.
    AttentionMaps {
        /// Number of updates done.
        step: u64,
        /// One element per attention layer.
        maps: &'a [AttentionMap],
    },
    /// The answers of the evaluated model to the fixed examples of its task.
    Samples {
        /// Number of updates done.
        step: u64,
        /// One element per example; none for tasks that have no examples.
        samples: &'a [Sample],
    },
    /// A checkpoint is about to be written. Observers must first sync what they have written to the disk.
    CheckpointSaving {
        /// Number of updates done.
        step: u64,
    },
    /// A checkpoint is complete on disk.
    CheckpointSaved {
        /// Number of updates done.
        step: u64,
        /// Its directory.
        path: &'a Path,
    },
    /// The forward and backward pass was captured as a CUDA graph; later steps replay it
    /// (`training.cuda_graphs`).
    GraphCaptured,
    /// `training.cuda_graphs` is on, but the pass could not be captured; it runs eagerly.
    GraphNotCaptured {
        /// The reason.
        reason: &'a Error,
    },
    /// The update of a bad step was skipped; the model is unchanged.
    Skipped {
        /// The bad step.
        bad_step: &'a BadStepReport,
    },
    /// The run went back to a checkpoint. Earlier events of later steps no longer hold.
    RolledBack {
        /// The bad step.
        bad_step: &'a BadStepReport,
        /// The step of the checkpoint.
        to: u64,
        /// Number of roll-backs, including this one.
        number: u64,
        /// The new factor on the learning rate.
        lr_factor: f64,
    },
    /// The run ends before its last step because its evaluations no longer improve, or have reached the target.
    EarlyStopped {
        /// Number of updates done.
        step: u64,
        /// The metric of early stopping.
        metric: &'a str,
        /// The best evaluation, if any value was finite.
        best: Option<Best>,
        /// Whether they have reached the target.
        is_at_target: bool,
    },
    /// The run has ended.
    Finished {
        /// Number of updates done.
        step: u64,
        /// Wall-clock seconds since [`Event::RunStarted`].
        seconds: f64,
    },
}

/// The report of an update: its loss and metrics, and the throughput since the previous report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepReport<'a> {
    /// Number of updates done.
    pub step: u64,
    /// The training loss of this update, the mean over its micro-batches.
    pub loss: f64,
    /// The learning rate of this update.
    pub lr: f64,
    /// The norm of the gradient of all parameters, before clipping.
    pub grad_norm: f64,
    /// Training examples per second.
    pub examples_per_second: f64,
    /// Training tokens per second, for tasks that count tokens.
    pub tokens_per_second: Option<f64>,
    /// The metrics of this update by name: `loss` and the metrics of the task.
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
