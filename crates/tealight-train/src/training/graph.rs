//! Passes as a CUDA graph (`training.cuda_graphs`).
//!
//! On a GPU, the kernels of a small model finish faster than the host can launch them. Where batches have one
//! shape, the pass is captured once as a CUDA graph ([`CudaGraph`]) and then replayed with one launch per step. A
//! replay computes the same bits as an eager pass. A pass that waits for the GPU or copies from the host cannot
//! be captured; it stays eager, and observers get the reason.

use candle_core::{DType, Device, Shape, Tensor};
use tealight_ops::cuda_graph::{CudaGraph, warm_up};
use tealight_ops::device::tensor_of;
use tealight_ops::rng::Stream;

use super::pass::{Pass, PassContext, pass};
use super::prefetch::Prefetch;
use super::session::Session;
use crate::error::{Error, Result};
use crate::observer::{Event, Observers, notify};
use crate::task::{Inputs, Task};

/// Warm-up passes over batches of one shape before the capture: they compile kernels and build tables.
const WARM_UP_PASSES: usize = 2;

/// A pass that is captured after its warm-up and replayed from then on.
#[derive(Default)]
pub(crate) struct GraphedPass {
    state: State,
    /// The result of the capture, until it is reported.
    capture: Option<Result<()>>,
}

enum State {
    /// The shapes of the last batch, and how many batches in a row before it have had them.
    WarmUp(Vec<(Shape, DType)>, usize),
    Captured(Box<CudaGraph<Pass>>),
    /// The capture failed.
    Eager,
}

impl Default for State {
    fn default() -> Self {
        Self::WarmUp(Vec::new(), 0)
    }
}

impl GraphedPass {
    /// Eager passes: `rule` says why this run cannot capture them.
    pub(crate) fn refused(rule: &str) -> Self {
        let keys = ["training.cuda_graphs", "training.micro_batches", "teacher"];
        Self { state: State::Eager, capture: Some(Err(Error::config(keys, rule))) }
    }

    /// The pass over `batch`: eager during the warm-up and for batches of another shape, a replay otherwise.
    pub(crate) fn run<T: Task>(
        &mut self,
        session: &Session<T>,
        batches: &Prefetch<'_, '_, T>,
        batch: &T::Batch,
        stream: Stream,
    ) -> Result<Pass> {
        let (inputs, device) = (session.task.inputs(batch), session.params.device());
        let context = PassContext { stream, loss_weight: None, on_final: None, part: None };
        let eager = || pass(session, batch, context);
        if inputs.count == 0. {
            return eager();
        }
        match &mut self.state {
            State::Eager => eager(),
            State::Captured(graph) => {
                let weight = loss_weight(&inputs, device)?;
                let tensors = with_weight(&inputs, &weight);
                if !graph.fits(&tensors) {
                    return eager();
                }
                let replayed = graph.replay(&tensors, stream)?.clone();
                let count = inputs.count;
                let measures = replayed.measures.recounted(replayed.count, count);
                let n_tokens = session.task.n_tokens(batch);
                Ok(Pass { measures, count, n_tokens, ..replayed })
            }
            State::WarmUp(last, n_alike) => {
                let shapes = inputs.shapes();
                *n_alike = if *last == shapes { *n_alike + 1 } else { 0 };
                *last = shapes;
                if *n_alike < WARM_UP_PASSES {
                    return warm_up(device, eager);
                }
                match batches.paused(|| capture(session, &inputs, batch, stream)) {
                    Ok(graph) => {
                        let first = graph.result().clone();
                        self.state = State::Captured(Box::new(graph));
                        self.capture = Some(Ok(()));
                        Ok(first)
                    }
                    Err(error) => {
                        (self.state, self.capture) = (State::Eager, Some(Err(error)));
                        eager()
                    }
                }
            }
        }
    }

    /// Reports once whether the capture succeeded.
    pub(crate) fn report_capture(&mut self, observers: &mut Observers<'_>) -> Result<()> {
        match self.capture.take() {
            Some(Ok(())) => notify(observers, &Event::GraphCaptured),
            Some(Err(reason)) => notify(observers, &Event::GraphNotCaptured { reason: &reason }),
            None => Ok(()),
        }
    }
}

/// Captures the pass over `batch`, and runs it for the first time.
fn capture<T: Task>(
    session: &Session<T>,
    inputs: &Inputs<'_>,
    batch: &T::Batch,
    stream: Stream,
) -> Result<CudaGraph<Pass>> {
    let weight = loss_weight(inputs, session.params.device())?;
    let tensors = with_weight(inputs, &weight).into_iter().cloned().collect();
    let context = PassContext { stream, loss_weight: Some(&weight), on_final: None, part: None };
    CudaGraph::capture(tensors, stream, || pass(session, batch, context))
}

/// 1 / number of items, on the device, where a replay reads it.
fn loss_weight(inputs: &Inputs<'_>, device: &Device) -> Result<Tensor> {
    let weight = (1. / inputs.count) as f32;
    Ok(tensor_of(vec![weight], (), device)?)
}

/// The tensors that a replay overwrites.
fn with_weight<'a>(inputs: &Inputs<'a>, weight: &'a Tensor) -> Vec<&'a Tensor> {
    inputs.tensors.iter().copied().chain([weight]).collect()
}
