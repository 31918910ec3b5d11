//! The definition, in plain tensor operations.
//!
//! Bisection finds the support (Peters et al. 2019, Algorithm 1), without a graph. For a given support τ
//! has a closed form, which is differentiated.

use candle_core::{D, DType, Result, Tensor};

/// Bisection steps: the interval of τ becomes smaller than the rounding of f64.
const N_HALVINGS: usize = 60;

/// `x (.., width)` → `(.., width)`
pub fn sparsemax(x: &Tensor) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return Ok(x.clone()); // Candle's maximum fails without elements.
    }
    let z = shifted(x)?;
    let (outside, n) = complement(&z, Ok)?;
    // τ = (Σ z − 1) / n, sums over the support
    let threshold = (only(&outside, &z)?.sum_keepdim(D::Minus1)? - 1.)?.div(&n)?;
    only(&outside, &z.broadcast_sub(&threshold)?)
}

/// `x (.., width)` → `(.., width)`
pub fn entmax15(x: &Tensor) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    let z = (shifted(x)? * 0.5)?;
    let (outside, n) = complement(&z, |root| root.sqr())?;
    // τ = M − √((1 − S) / n), M and S the mean and the sum of squared deviations on the support
    let mean = only(&outside, &z)?.sum_keepdim(D::Minus1)?.div(&n)?; // (.., 1)
    let deviations = only(&outside, &z.broadcast_sub(&mean)?)?.sqr()?.sum_keepdim(D::Minus1)?;
    let threshold = (mean - (1. - deviations)?.div(&n)?.sqrt()?)?;
    only(&outside, &z.broadcast_sub(&threshold)?)?.sqr()
}

/// x − max x; x itself for a row of −∞ alone.
fn shifted(x: &Tensor) -> Result<Tensor> {
    let max = x.detach().max_keepdim(D::Minus1)?; // (.., 1)
    let shift = max.eq(f64::NEG_INFINITY)?.where_cond(&max.zeros_like()?, &max)?;
    x.broadcast_sub(&shift)
}

/// Where z ≤ τ, `(.., width)`, and the size of the support or 1, `(.., 1)`.
///
/// `power` maps [z − τ]₊ to weights. The largest element of z is 0, so τ is from −1 to 0.
fn complement(z: &Tensor, power: fn(Tensor) -> Result<Tensor>) -> Result<(Tensor, Tensor)> {
    let z = z.detach();
    let mut high = z.narrow(D::Minus1, 0, 1)?.zeros_like()?; // (.., 1)
    let mut low = (&high - 1.)?;
    for _ in 0..N_HALVINGS {
        let middle = ((&low + &high)? * 0.5)?;
        let total = power(z.broadcast_sub(&middle)?.relu()?)?.sum_keepdim(D::Minus1)?;
        let is_high = total.lt(1.)?;
        high = is_high.where_cond(&middle, &high)?;
        low = is_high.where_cond(&low, &middle)?;
    }
    let outside = z.broadcast_le(&low)?; // false for NaN, which therefore reaches the result
    let n_outside = outside.to_dtype(DType::F64)?.sum_keepdim(D::Minus1)?;
    let n = (z.dim(D::Minus1)? as f64 - n_outside)?.clamp(1., f64::INFINITY)?;
    Ok((outside, n.to_dtype(z.dtype())?))
}

/// `x`, with zeros `outside`.
fn only(outside: &Tensor, x: &Tensor) -> Result<Tensor> {
    outside.where_cond(&x.zeros_like()?, x)
}
