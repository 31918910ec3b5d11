//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use crate::ops::padding_mask;

/// `x (batch, n_heads, len, head_dim)`, `weight (n_heads, 1, kernel, 1)`,
/// `key_padding_mask (batch, len)` → `(batch, n_heads, len, head_dim)`
pub fn depthwise_convolution(
    x: &Tensor,
    weight: &Tensor,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (_, _, len, _) = x.dims4()?;
    let (n_heads, _, kernel, _) = weight.dims4()?;
    let weight = weight.to_dtype(x.dtype())?.reshape((1, n_heads, kernel, 1))?;
    let x = padding_mask::zeroed(x, key_padding_mask)?;
    let padded = x.pad_with_zeros(2, kernel / 2, kernel / 2)?; // (.., len + kernel − 1, head_dim)
    let mut y = x.zeros_like()?;
    for j in 0..kernel {
        let term = padded.narrow(2, j, len)?.broadcast_mul(&weight.narrow(2, j, 1)?)?;
        y = (y + term)?;
    }
    Ok(y)
}
