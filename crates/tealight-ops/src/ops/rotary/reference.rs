//! The definition, in plain tensor operations.

use candle_core::{D, Result, Tensor};

use super::Layout;

/// `x (batch, seq_len, n_heads, head_dim)` → the same shape
pub fn rotate_heads_last(x: &Tensor, cos: &Tensor, sin: &Tensor, layout: Layout) -> Result<Tensor> {
    rotate(&x.transpose(1, 2)?, cos, sin, layout)?.transpose(1, 2)
}

/// `x (batch, n_heads, seq_len, head_dim)` → the same shape
pub fn rotate(x: &Tensor, cos: &Tensor, sin: &Tensor, layout: Layout) -> Result<Tensor> {
    let (batch, n_heads, seq_len, head_dim) = x.dims4()?;
    let (cos, sin) = (cos.detach().to_dtype(x.dtype())?, sin.detach().to_dtype(x.dtype())?);
    // Channel c of a pair is axis 3 or 4, whichever is not the index of the angle.
    let (axis, split) = match layout {
        Layout::Interleaved => (4, (batch, n_heads, seq_len, head_dim / 2, 2)),
        Layout::Half => (3, (batch, n_heads, seq_len, 2, head_dim / 2)),
    };
    let pairs = x.reshape(split)?;
    let first = pairs.narrow(axis, 0, 1)?.squeeze(axis)?; // (batch, n_heads, seq_len, head_dim/2)
    let second = pairs.narrow(axis, 1, 1)?.squeeze(axis)?;
    let rotated = [
        (first.broadcast_mul(&cos)? - second.broadcast_mul(&sin)?)?,
        (first.broadcast_mul(&sin)? + second.broadcast_mul(&cos)?)?,
    ];
    match layout {
        Layout::Interleaved => Tensor::stack(&rotated, D::Minus1)?.reshape(x.shape()),
        Layout::Half => Tensor::cat(&rotated, D::Minus1),
    }
}
