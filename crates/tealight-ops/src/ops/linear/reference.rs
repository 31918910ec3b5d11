//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use super::with_last;

/// `x (.., in)`, `weight (out, in)`, `bias (out)` → `(.., out)`
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let (n_outputs, n_inputs) = weight.dims2()?;
    let y = x.reshape(((), n_inputs))?.matmul(&weight.t()?)?; // (rows, out)
    let y = match bias {
        Some(bias) => y.broadcast_add(bias)?,
        None => y,
    };
    y.reshape(with_last(x.dims(), n_outputs))
}
