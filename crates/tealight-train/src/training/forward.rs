//! The loss of a batch, before its backward pass.

use candle_core::Tensor;

use crate::task::Loss;

/// The loss of a batch.
pub(super) struct Forward {
    /// With the autograd graph of its sum.
    pub(super) loss: Loss,
    /// The sum that is reported: what is differentiated has the gradient of a loss over several batches, not its value.
    pub(super) reported: Tensor,
}

impl Forward {
    /// A loss that is reported as it is.
    pub(super) fn new(loss: Loss) -> Self {
        Self { reported: loss.sum.clone(), loss }
    }
}
