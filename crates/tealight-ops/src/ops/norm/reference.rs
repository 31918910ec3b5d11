//! The definition, in plain tensor operations.

use candle_core::{D, Result, Tensor};

/// `x (.., width)`, `weight (width)`, `bias (width)` → `(.., width)`
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1)?)?;
    let y = rms_norm(&centred, weight, eps)?;
    match bias {
        Some(bias) => y.broadcast_add(&bias.to_dtype(x.dtype())?),
        None => Ok(y),
    }
}

/// `x (.., width)`, `weight (width)` → `(.., width)`
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    let mean_square = x.sqr()?.mean_keepdim(D::Minus1)?; // (.., 1)
    let normalised = x.broadcast_div(&(mean_square + eps)?.sqrt()?)?;
    normalised.broadcast_mul(&weight.to_dtype(x.dtype())?)
}
