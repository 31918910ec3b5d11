//! The definition, in differentiable tensor operations.

use candle_core::{Result, Tensor};

/// See [`swap_axes`](super::swap_axes).
pub fn swap_axes(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.contiguous()
}
