//! The forward and backward pass over one batch.

use std::fmt;

use candle_core::Tensor;
use tealight_model::Mode;
use tealight_ops::Gradients;
use tealight_ops::rng::Stream;

use super::forward::Forward;
use super::joint_loss::Part;
use super::session::Session;
use crate::error::Result;
use crate::task::metrics::Measures;
use crate::task::{Loss, Task};

/// The inputs of a pass besides the batch.
#[derive(Clone, Copy)]
pub(crate) struct PassContext<'a> {
    /// Random numbers of dropout.
    pub(crate) stream: Stream,
    /// Factor of the summed loss, a scalar on the device, where a captured graph reads it; `None` in an eager
    /// pass, which knows the factor on the host.
    pub(crate) loss_weight: Option<&'a Tensor>,
    /// Receives the gradient of each parameter as soon as it is final: its place among the parameters, and the gradient
    /// if it has one.
    pub(crate) on_final: Option<&'a OnFinal<'a>>,
    /// The part of this batch in a loss over all batches of the step.
    pub(crate) part: Option<&'a Part>,
}

/// See [`PassContext::on_final`].
pub(crate) type OnFinal<'a> = dyn Fn(usize, Option<&Tensor>) -> Result<()> + 'a;

impl fmt::Debug for PassContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, loss_weight, on_final, part } = self;
        let mut shown = f.debug_struct("PassContext");
        shown.field("stream", stream).field("loss_weight", loss_weight);
        shown.field("on_final", &on_final.is_some()).field("part", part).finish()
    }
}

/// The pass over `batch`: the loss forward, then its gradients backward.
pub(crate) fn pass<T: Task>(
    session: &Session<T>,
    batch: &T::Batch,
    context: PassContext<'_>,
) -> Result<Pass> {
    let Forward { loss, reported } = forward(session, batch, context)?;
    let gradients = backward(session, &loss, context)?;
    let (count, n_tokens) = (loss.count, session.task.n_tokens(batch));
    let measures = Loss { sum: reported, ..loss }.measures();
    Ok(Pass { gradients, measures, count, n_tokens })
}

/// The loss of a batch.
fn forward<T: Task>(
    session: &Session<T>,
    batch: &T::Batch,
    context: PassContext<'_>,
) -> Result<Forward> {
    let Session { config, task, model, teacher, params, .. } = session;
    let activations = config.training.activations();
    let mode = Mode::Train { stream: context.stream, activations };
    if let (Some(teacher), Some(imitation)) = (teacher, task.imitation()) {
        let by_labels = |outputs: &Tensor| match context.part {
            Some(part) => part.forward(outputs),
            None => Ok(Forward::new(imitation.loss_by_labels(outputs, batch)?)),
        };
        let forward = teacher.loss(imitation, model, batch, mode, by_labels)?;
        return match (forward, context.part) {
            (Some(forward), _) => Ok(forward),
            (None, Some(part)) => part.without_rows(),
            (None, None) => Ok(Forward::new(Loss::zero(params.device())?)),
        };
    }
    match (context.part, task.joint_loss()) {
        (Some(part), Some(joint)) => part.forward(&joint.vectors(model, batch, mode)?),
        _ => Ok(Forward::new(task.loss(model, batch, mode)?)),
    }
}

/// The gradients of a batch: of the mean loss where the batch is the whole step, of the summed loss where the
/// step has several micro-batches. [`PassContext::on_final`] receives each as soon as it is final.
fn backward<T: Task>(
    session: &Session<T>,
    loss: &Loss,
    context: PassContext<'_>,
) -> Result<Gradients> {
    let leaves = session.params.leaves();
    let parameters = leaves.iter().map(|(name, leaf)| (name.as_str(), leaf));
    let is_whole_step = session.config.training.micro_batches == 1 && loss.count > 0.;
    let factor = if is_whole_step { 1. / loss.count } else { 1. };
    Ok(match (context.loss_weight, context.on_final) {
        (Some(weight), _) => tealight_ops::backward_weighted(&loss.sum, weight, parameters)?,
        (None, None) => tealight_ops::backward_scaled(&loss.sum, factor, parameters)?,
        (None, Some(on_final)) => {
            let on_final = |index, gradient: Option<&Tensor>| {
                on_final(index, gradient).map_err(candle_core::Error::wrap)
            };
            tealight_ops::backward_observed(&loss.sum, factor, parameters, on_final)?
        }
    })
}

/// The result of one pass, or the sum over the micro-batches of a step.
#[derive(Clone, Debug)]
pub(crate) struct Pass {
    /// Gradients of the summed loss; of the mean loss if this is a whole step.
    pub(crate) gradients: Gradients,
    /// The loss and the task's own measures. They may still be on the device.
    pub(crate) measures: Measures,
    /// Items that carry a loss.
    pub(crate) count: f64,
    /// Tokens read; `None` if the task does not count them.
    pub(crate) n_tokens: Option<u64>,
}

impl Pass {
    /// The sum of this pass and that over later micro-batches.
    pub(crate) fn plus(mut self, later: Self) -> Result<Self> {
        self.gradients.accumulate(later.gradients)?;
        self.measures.merge(later.measures);
        self.count += later.count;
        self.n_tokens = self.n_tokens.zip(later.n_tokens).map(|(a, b)| a + b);
        Ok(self)
    }
}
