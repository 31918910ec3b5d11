//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use crate::ops::dropout::{self, Draw};

/// `x` and `change (batch, ..)` → the same shape
pub fn stochastic_depth(x: &Tensor, change: &Tensor, draw: Draw) -> Result<Tensor> {
    let factors = dropout::reference::dropout(&ones(x)?, draw.rate, draw.stream)?;
    with_factors(x, change, &factors)
}

/// A one for each example of `x`: `(batch, 1, ..)`.
pub(super) fn ones(x: &Tensor) -> Result<Tensor> {
    let mut shape = vec![1; x.rank()];
    shape[0] = x.dim(0)?;
    Tensor::ones(shape, x.dtype(), x.device())
}

/// x + factors · change; x alone where a factor is 0, even of a change of NaN.
pub(super) fn with_factors(x: &Tensor, change: &Tensor, factors: &Tensor) -> Result<Tensor> {
    let is_kept = factors.ne(0.)?.broadcast_as(x.shape())?;
    is_kept.where_cond(&(x + change.broadcast_mul(factors)?)?, x)
}
