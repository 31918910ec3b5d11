//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

/// `x (.., width)`, `bias (width)`, `scale (width)` → `(.., width)`
pub fn scaled_softplus(x: &Tensor, bias: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let z = x.broadcast_add(bias)?;
    let softplus = (z.relu()? + (z.abs()?.neg()?.exp()? + 1.)?.log()?)?;
    softplus.broadcast_mul(scale)
}
