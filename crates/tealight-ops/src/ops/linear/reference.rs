//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use super::with_last;
use crate::backend::choice::widened_all;

/// `x (.., in)`, `weight (out, in)`, `bias (out)` → `(.., out)`
///
/// In half precision, the sums and the bias are added in f32, and the result is rounded once.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    match bias {
        Some(bias) => widened_all([x, weight, bias], |[x, weight, bias]| {
            product(x, weight)?.broadcast_add(bias)
        }),
        None => product(x, weight),
    }
}

/// x Wᵀ
fn product(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    let (n_outputs, n_inputs) = weight.dims2()?;
    let y = x.reshape(((), n_inputs))?.matmul(&weight.t()?)?; // (rows, out)
    y.reshape(with_last(x.dims(), n_outputs))
}
