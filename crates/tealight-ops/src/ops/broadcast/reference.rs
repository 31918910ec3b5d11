//! The definition, in differentiable tensor operations.

use candle_core::{Result, Tensor};

/// See [`broadcast_add`](super::broadcast_add).
pub fn broadcast_add(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    x.broadcast_add(v)
}
