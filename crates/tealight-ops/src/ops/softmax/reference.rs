//! The definition, in plain tensor operations.

use candle_core::{D, Result, Tensor};

/// `x (.., width)` → `(.., width)`
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return Ok(x.clone()); // Candle's maximum fails without elements.
    }
    let (_, exponentials, sum) = shifted(x)?;
    exponentials.broadcast_div(&sum)
}

/// `x (.., width)` → `(.., width)`
pub fn log_softmax(x: &Tensor) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return Ok(x.clone());
    }
    let (shifted, _, sum) = shifted(x)?;
    shifted.broadcast_sub(&sum.log()?)
}

/// x − max, its exponential, and the sum of that: `(.., width)` twice, then `(.., 1)`.
fn shifted(x: &Tensor) -> Result<(Tensor, Tensor, Tensor)> {
    let max = x.detach().max_keepdim(D::Minus1)?; // (.., 1)
    let is_empty = max.eq(f64::NEG_INFINITY)?; // (.., 1)
    // −∞ − (−∞) would be NaN, and the sum of such a row 0.
    let shift = is_empty.where_cond(&max.zeros_like()?, &max)?;
    let shifted = x.broadcast_sub(&shift)?;
    let exponentials = shifted.exp()?;
    let sum = (exponentials.sum_keepdim(D::Minus1)? + is_empty.to_dtype(x.dtype())?)?;
    Ok((shifted, exponentials, sum))
}
