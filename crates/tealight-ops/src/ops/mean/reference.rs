//! The definition, in differentiable tensor operations.

use candle_core::{Result, Tensor};

/// See [`mean`](super::mean()).
pub fn mean(x: &Tensor) -> Result<Tensor> {
    x.mean(1)
}
