//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use super::TERMS;

/// `x (.., width)`, `bias (width)`, `scale (width)` → `(.., width)`
pub fn scaled_softplus(x: &Tensor, bias: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let z = x.broadcast_add(bias)?;
    let positive = z.relu()?;
    let size = ((&positive * 2.)? - &z)?; // |z|, with a gradient that is right at 0, too
    let softplus = (positive + ln_1_plus(&size.neg()?.exp()?)?)?;
    softplus.broadcast_mul(scale)
}

/// ln(1 + x) for x in [0, 1], as 2 artanh(x / (2 + x)): 1 + x would lose the digits of small x.
pub(crate) fn ln_1_plus(x: &Tensor) -> Result<Tensor> {
    let s = (x / (x + 2.)?)?;
    let square = s.sqr()?;
    let mut sum = square.zeros_like()?;
    for term in (0..TERMS).rev() {
        sum = ((sum * &square)? + 1. / f64::from(2 * term + 1))?;
    }
    (s * 2.)? * sum
}
