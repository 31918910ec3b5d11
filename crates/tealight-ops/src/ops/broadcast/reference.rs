//! The definition, in differentiable tensor operations.

use candle_core::{Result, Tensor};

/// See [`broadcast_add`](super::broadcast_add).
pub fn broadcast_add(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    x.broadcast_add(v)
}

/// See [`broadcast_mul`](super::broadcast_mul).
pub fn broadcast_mul(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    x.broadcast_mul(v)
}

/// See [`scale_rows`](super::scale_rows).
pub fn scale_rows(x: &Tensor, scale: &Tensor) -> Result<Tensor> {
    x.broadcast_mul(&scale.unsqueeze(scale.rank())?)
}
