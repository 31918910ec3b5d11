//! Sequences of different lengths in one tensor.

use candle_core::{Device, Tensor};
use tealight_model::Mask;
use tealight_ops::device::tensor_of;

use crate::error::Result;

/// Ids `(batch, longest)`, shorter rows padded with `pad`, and the mask of the padding.
pub(crate) fn padded(rows: &[Vec<u32>], pad: u32, device: &Device) -> Result<(Tensor, Mask)> {
    padded_to(0, rows, pad, device)
}

/// [`padded`] to `width` at least.
pub(crate) fn padded_to(
    width: usize,
    rows: &[Vec<u32>],
    pad: u32,
    device: &Device,
) -> Result<(Tensor, Mask)> {
    let longest = rows.iter().map(Vec::len).max().unwrap_or(0).max(width);
    let shape = (rows.len(), longest);
    let at = |row: &Vec<u32>| {
        (0..longest).map(|at| row.get(at).copied().unwrap_or(pad)).collect::<Vec<_>>()
    };
    let is_padding =
        |row: &Vec<u32>| (0..longest).map(|at| u8::from(at >= row.len())).collect::<Vec<_>>();
    let ids = tensor_of(rows.iter().flat_map(at).collect(), shape, device)?;
    let flags = tensor_of(rows.iter().flat_map(is_padding).collect(), shape, device)?;
    Ok((ids, Mask::none().with_key_padding_mask(&flags)?))
}
