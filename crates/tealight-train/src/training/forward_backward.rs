//! Forward and backward over the batches of a step.
//!
//! [`ForwardBackward::run`] applies a pass (forward, then backward) to each micro-batch of a step and sums the
//! gradients and measures. Its caller, [`train_step`](super::train_step), depends neither on the number of
//! micro-batches nor on whether a pass is eager or a replayed CUDA graph, and receives panics as errors.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use tealight_model::Mode;
use tealight_ops::device::shares_one_stream;
use tealight_ops::profile::{self, timed};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::with_product_precision;

use super::graph::GraphedPass;
use super::pass::{Pass, PassContext};
use super::prefetch::Prefetch;
use super::session::Session;
use crate::config::TrainingConfig;
use crate::error::{Error, Result};
use crate::observer::Observers;
use crate::task::{Loss, Task};

/// The loss of a batch, with its autograd graph.
pub(crate) fn forward<T: Task>(
    session: &Session<T>,
    batch: &T::Batch,
    context: PassContext<'_>,
) -> Result<Loss> {
    let activations = session.config.training.activations();
    let mode = Mode::Train { stream: context.stream, activations };
    session.task.loss(&session.model, batch, mode)
}

/// The gradients of a batch: of the mean loss where the batch is the whole step, of the summed loss where the
/// step has several micro-batches.
pub(crate) fn backward<T: Task>(
    session: &Session<T>,
    batch: &T::Batch,
    loss: Loss,
    context: PassContext<'_>,
) -> Result<Pass> {
    let leaves = session.params.leaves();
    let parameters = leaves.iter().map(|(name, leaf)| (name.as_str(), leaf));
    let is_whole_step = session.config.training.micro_batches == 1 && loss.count > 0.;
    let gradients = match context.loss_weight {
        Some(weight) => tealight_ops::backward_weighted(&loss.sum, weight, parameters)?,
        None if is_whole_step => {
            tealight_ops::backward_scaled(&loss.sum, 1. / loss.count, parameters)?
        }
        None => tealight_ops::backward(&loss.sum, parameters)?,
    };
    let (count, n_tokens) = (loss.count, session.task.n_tokens(batch));
    Ok(Pass { gradients, measures: loss.measures(), count, n_tokens })
}

/// Runs the forward and backward passes of steps.
pub(crate) struct ForwardBackward<'scope, 'env, T: Task> {
    batches: Prefetch<'scope, 'env, T>,
    /// `None`: every pass is eager.
    graph: Option<GraphedPass>,
}

impl<'scope, 'env, T: Task> ForwardBackward<'scope, 'env, T> {
    /// Eager, or a CUDA graph if `training.cuda_graphs` asks for one; where there can be none, observers get the
    /// reason.
    pub(crate) fn new(session: &Session<T>, batches: Prefetch<'scope, 'env, T>) -> Self {
        let TrainingConfig { cuda_graphs, micro_batches, .. } = session.config.training;
        let graph = || match (micro_batches, shares_one_stream(session.params.device())) {
            (_, false) => GraphedPass::refused("the run does not compute on an NVIDIA GPU"),
            (1, true) => GraphedPass::default(),
            (_, true) => GraphedPass::refused(
                "`training.micro_batches` is above 1, and a replay overwrites the gradients of the one before",
            ),
        };
        Self { batches, graph: cuda_graphs.then(graph) }
    }

    /// Eager passes over batches that are not prefetched.
    pub(crate) fn eager(task: &'env T) -> Self {
        Self { batches: Prefetch::new(task, None), graph: None }
    }

    /// Applies `pass` to each micro-batch of the session's next step.
    ///
    /// The gradients are those of the mean loss over all micro-batches; of a step without any label they are
    /// absent or zero.
    ///
    /// # Errors
    /// Those of the data and of `pass`; a panic in either is [`Error::Panicked`]. The session is unchanged.
    pub(crate) fn run(
        &mut self,
        session: &Session<T>,
        pass: impl Fn(&T::Batch, PassContext<'_>) -> Result<Pass>,
    ) -> Result<Pass> {
        let step = session.progress.step;
        let TrainingConfig { micro_batches, precision, .. } = session.config.training;
        let mean_over_micro_batches = || {
            let mut sum = self.micro_batch(session, step, 0, &pass)?;
            for micro in 1..micro_batches {
                sum.add(self.micro_batch(session, step, micro, &pass)?)?;
            }
            if sum.count > 0. && micro_batches > 1 {
                sum.gradients.scale(1. / sum.count)?;
            }
            Ok(sum)
        };
        let run = AssertUnwindSafe(|| {
            with_product_precision(precision.of_products(), mean_over_micro_batches)
        });
        catch_unwind(run).unwrap_or_else(|panic| {
            Err(Error::Panicked { step: step + 1, message: message_of(&*panic) })
        })
    }

    /// Applies `pass` to one micro-batch. Its dropout is a function of (seed, step, micro-batch).
    pub(crate) fn micro_batch(
        &mut self,
        session: &Session<T>,
        step: u64,
        micro: u64,
        pass: &impl Fn(&T::Batch, PassContext<'_>) -> Result<Pass>,
    ) -> Result<Pass> {
        let stream = Stream::new(session.config.seed, Purpose::Dropout).fork(step).fork(micro);
        let batch_index = step * session.config.training.micro_batches + micro;
        let batch = timed("batch", profile::Phase::Other, || self.batches.take(batch_index))?;
        match &mut self.graph {
            Some(graph) => graph.run(session, &self.batches, &batch, stream, pass),
            None => pass(&batch, PassContext { stream, loss_weight: None }),
        }
    }

    /// Reports once whether the CUDA graph was captured.
    pub(crate) fn report_capture(&mut self, observers: &mut Observers<'_>) -> Result<()> {
        self.graph.as_mut().map_or(Ok(()), |graph| graph.report_capture(observers))
    }
}

/// The message of a panic.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default()
}
