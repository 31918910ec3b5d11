//! One forward and backward pass: its inputs and results.

use std::fmt;

use candle_core::Tensor;
use tealight_ops::Gradients;
use tealight_ops::rng::Stream;

use crate::error::Result;
use crate::task::metrics::Measures;

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
}

/// See [`PassContext::on_final`].
pub(crate) type OnFinal<'a> = dyn Fn(usize, Option<&Tensor>) -> Result<()> + 'a;

impl fmt::Debug for PassContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { stream, loss_weight, on_final } = self;
        let mut shown = f.debug_struct("PassContext");
        shown.field("stream", stream).field("loss_weight", loss_weight);
        shown.field("on_final", &on_final.is_some()).finish()
    }
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
