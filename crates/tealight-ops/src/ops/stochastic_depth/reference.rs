//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use crate::ops::dropout::{self, Draw};

/// `x` and `change (batch, ..)` → the same shape
pub fn stochastic_depth(x: &Tensor, change: &Tensor, draw: Draw) -> Result<Tensor> {
    let mut shape = vec![1; x.rank()];
    shape[0] = x.dim(0)?;
    let ones = Tensor::ones(shape, x.dtype(), x.device())?;
    let factors = dropout::reference::dropout(&ones, draw.rate, draw.stream)?;
    x + change.broadcast_mul(&factors)?
}
