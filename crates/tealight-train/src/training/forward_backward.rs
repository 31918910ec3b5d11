//! Forward and backward over the batches of a step.
//!
//! [`ForwardBackward::run`] makes a [`pass`](super::pass) over each micro-batch of a step and sums the
//! gradients and measures in the order of [`PairwiseSum`]. Before a loss over all micro-batches, each of them gets its part
//! in that loss ([`joint_loss`](super::joint_loss)). Its caller, [`train_step`](super::train_step), depends
//! neither on the number of micro-batches, nor on the number of ranks among which they are divided, nor on whether a
//! pass is eager or a replayed CUDA graph, and receives panics as errors.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use candle_core::Tensor;
use tealight_ops::device::shares_one_stream;
use tealight_ops::profile::{self, timed};
use tealight_ops::rng::{Purpose, Stream};
use tealight_ops::with_product_precision;

use super::distributed::step::{PartialStep, SharedStep};
use super::graph::GraphedPass;
use super::joint_loss::{Part, parts};
use super::pairwise_sum::{Node, PairwiseSum};
use super::pass::{OnFinal, Pass, PassContext, pass};
use super::prefetch::{BatchShare, Prefetch};
use super::session::Session;
use crate::error::{Error, Result, panic_message};
use crate::observer::Observers;
use crate::task::Task;

/// Runs the forward and backward passes of steps.
pub(crate) struct ForwardBackward<'scope, 'env, T: Task> {
    batches: Prefetch<'scope, 'env, T>,
    /// `None`: every pass is eager.
    graph: Option<GraphedPass>,
    /// `None`: all micro-batches are this process's.
    shared: Option<SharedStep>,
    /// Whether the run should end after this step.
    is_stopped: &'env dyn Fn() -> bool,
    /// By micro-batch of the step that is being made: its batch, and its part in a loss over all of them. Empty where the
    /// loss of a step is the mean over its micro-batches.
    parts: BTreeMap<u64, (T::Batch, Part)>,
}

impl<'scope, 'env, T: Task> ForwardBackward<'scope, 'env, T> {
    /// Eager, or a CUDA graph if `training.cuda_graphs` asks for one; where there can be none, observers get the
    /// reason. A step that ranks `share` has this rank's micro-batches only.
    pub(crate) fn new(
        session: &Session<T>,
        batches: Prefetch<'scope, 'env, T>,
        shared: Option<SharedStep>,
        is_stopped: &'env dyn Fn() -> bool,
    ) -> Self {
        let config = &session.config;
        let graph = || {
            if !shares_one_stream(session.params.device()) {
                return GraphedPass::refused("the run does not compute on an NVIDIA GPU");
            }
            config.no_cuda_graph().map_or_else(GraphedPass::default, GraphedPass::refused)
        };
        let graph = config.training.cuda_graphs.then(graph);
        Self { batches, graph, shared, is_stopped, parts: BTreeMap::new() }
    }

    /// Eager passes over all micro-batches of a step, which are not prefetched.
    pub(crate) fn eager(task: &'env T) -> Self {
        let batches = Prefetch::new(task, BatchShare::all(), None);
        let parts = BTreeMap::new();
        Self { batches, graph: None, shared: None, is_stopped: &|| false, parts }
    }

    /// Whether the run should end before the next step. Ranks tell each other in every step, so that all end after the
    /// same one.
    pub(crate) fn is_stop_requested(&self) -> bool {
        self.shared.as_ref().map_or_else(self.is_stopped, SharedStep::is_stop_requested)
    }

    /// The passes over all micro-batches of the session's next step.
    ///
    /// The gradients are those of the mean loss over all micro-batches; of a step without any label they are
    /// absent or zero.
    ///
    /// # Errors
    /// Those of the data and of a pass; a panic in either is [`Error::Panicked`]. The session is unchanged.
    pub(crate) fn run(&mut self, session: &Session<T>) -> Result<Pass> {
        match self.shared.take() {
            None => guarded(session, || self.mean(session)),
            Some(mut shared) => {
                let part = guarded(session, || self.own_part(session, &mut shared));
                let mean = shared.sum(part, (self.is_stopped)());
                self.shared = Some(shared);
                mean
            }
        }
    }

    /// The mean over all micro-batches of a step.
    fn mean(&mut self, session: &Session<T>) -> Result<Pass> {
        let (step, n) = (session.progress.step, session.config.training.micro_batches);
        self.find_parts(session, 0..n)?;
        let mut sum = PairwiseSum::new(n);
        for micro in 0..n {
            let pass = self.micro_batch(session, step, micro, None)?;
            sum.push(Node { leaves: micro..micro + 1, sum: pass }, Pass::plus)?;
        }
        let whole = sum.into_nodes().pop();
        let Node { sum: mut pass, .. } = whole.expect("invariant: a step has a micro-batch");
        if pass.count > 0. && n > 1 {
            pass.gradients.scale(1. / pass.count)?;
        }
        Ok(pass)
    }

    /// This rank's part of a step that others share.
    fn own_part(&mut self, session: &Session<T>, shared: &mut SharedStep) -> Result<PartialStep> {
        let (step, own) = (session.progress.step, shared.own_micro_batches());
        self.find_parts(session, own.clone())?;
        let mut part = PartialStep::new(session.config.training.micro_batches);
        for micro in own.start..own.end - 1 {
            part.add(micro, self.micro_batch(session, step, micro, None)?)?;
        }
        let last = own.end - 1;
        let offered = RefCell::new(&mut *shared);
        let offer = |index, gradient: Option<&Tensor>| {
            let partials = part.partials(last, index, gradient)?;
            offered.borrow_mut().offer(index, partials);
            Ok(())
        };
        let overlaps = session.config.distributed.overlap;
        let on_final: Option<&OnFinal<'_>> = if overlaps { Some(&offer) } else { None };
        let pass = self.micro_batch(session, step, last, on_final)?;
        if !overlaps {
            let mut gradients = pass.gradients.iter().enumerate();
            gradients.try_for_each(|(index, (_, gradient))| offer(index, gradient))?;
        }
        part.finish(pass)
    }

    /// The parts of the micro-batches `own` in the loss of a step, if that is one over all of its micro-batches.
    fn find_parts(&mut self, session: &Session<T>, own: Range<u64>) -> Result<()> {
        self.parts.clear();
        let n = session.config.training.micro_batches;
        let Some(joint) = session.task.joint_loss().filter(|_| n > 1) else { return Ok(()) };
        let step = session.progress.step;
        let batches = own.clone().map(|micro| self.batches.take(step * n + micro));
        let batches = batches.collect::<Result<Vec<_>>>();
        let dropout = |micro| dropout(session, step, micro);
        let (batches, parts) = parts(session, joint, own.clone(), batches, dropout)?;
        self.parts = own.zip(batches.into_iter().zip(parts)).collect();
        Ok(())
    }

    /// The pass over one micro-batch. Its dropout is a function of (seed, step, micro-batch).
    pub(crate) fn micro_batch(
        &mut self,
        session: &Session<T>,
        step: u64,
        micro: u64,
        on_final: Option<&OnFinal<'_>>,
    ) -> Result<Pass> {
        let stream = dropout(session, step, micro);
        if let Some((batch, part)) = self.parts.remove(&micro) {
            let context = PassContext { stream, loss_weight: None, on_final, part: Some(&part) };
            return pass(session, &batch, context);
        }
        let batch_index = step * session.config.training.micro_batches + micro;
        let batch = timed("batch", profile::Phase::Other, || self.batches.take(batch_index))?;
        let context = PassContext { stream, loss_weight: None, on_final, part: None };
        match (&mut self.graph, on_final) {
            (Some(graph), None) => graph.run(session, &self.batches, &batch, stream),
            // A graph hands over no gradients while it runs.
            _ => pass(session, &batch, context),
        }
    }

    /// Reports once whether the CUDA graph was captured.
    pub(crate) fn report_capture(&mut self, observers: &mut Observers<'_>) -> Result<()> {
        self.graph.as_mut().map_or(Ok(()), |graph| graph.report_capture(observers))
    }
}

/// The random numbers of dropout in a micro-batch.
fn dropout<T: Task>(session: &Session<T>, step: u64, micro: u64) -> Stream {
    Stream::new(session.config.seed, Purpose::Dropout).fork(step).fork(micro)
}

/// The result of `f`, which computes in the run's precision; a panic is an error.
pub(crate) fn guarded<T: Task, R>(
    session: &Session<T>,
    f: impl FnOnce() -> Result<R>,
) -> Result<R> {
    let precision = session.config.training.precision.of_products();
    let run = AssertUnwindSafe(|| with_product_precision(precision, f));
    catch_unwind(run).unwrap_or_else(|panic| {
        Err(Error::Panicked {
            step: session.progress.step + 1,
            message: panic_message(&*panic).unwrap_or_default().to_owned(),
        })
    })
}
