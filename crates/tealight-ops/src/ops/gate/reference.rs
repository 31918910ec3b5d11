//! The definition, in differentiable tensor operations.

use candle_core::{Result, Tensor};

use crate::ops::activation::{Function, reference};

/// See [`gated`](super::gated).
pub fn gated(function: Function, x: &Tensor, v: &Tensor) -> Result<Tensor> {
    reference::activation(function, x)?.broadcast_mul(v)
}
