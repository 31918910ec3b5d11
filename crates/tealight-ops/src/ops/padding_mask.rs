//! Padding masks: checks, and the forms in which loops and tensor operations read them.

use candle_core::{DType, Result, Tensor, bail};

/// Refuses a `key_padding_mask` that is not `(batch, len)` of u8.
///
/// Every operation checks this: a definition would reshape a mask of another shape and read it wrongly.
pub(crate) fn check(key_padding_mask: Option<&Tensor>, batch: usize, len: usize) -> Result<()> {
    let Some(mask) = key_padding_mask else { return Ok(()) };
    if mask.dims() != [batch, len] {
        bail!("key_padding_mask has shape {:?}, expected {:?}", mask.dims(), [batch, len])
    }
    if mask.dtype() != DType::U8 {
        bail!("key_padding_mask has dtype {:?}, expected u8", mask.dtype())
    }
    Ok(())
}

/// The flags of `key_padding_mask (batch, len)`, row by row; an empty vector without a mask.
pub(crate) fn flags(key_padding_mask: Option<&Tensor>) -> Result<Vec<u8>> {
    key_padding_mask.map_or(Ok(Vec::new()), |mask| mask.flatten_all()?.to_vec1())
}

/// The flags of one example; an empty slice if there is no mask.
pub(crate) fn row(flags: &[u8], example: usize, len: usize) -> &[u8] {
    flags.get(example * len..(example + 1) * len).unwrap_or_default()
}

/// Whether a position of a [`row`] is padding.
#[inline(always)]
pub(crate) fn is_padding(row: &[u8], position: usize) -> bool {
    row.get(position).is_some_and(|&flag| flag != 0)
}

/// `x (batch, n_heads, len, width)` with zeros at padding, where it may hold NaN: a weight of 0 would not
/// remove that.
pub(crate) fn zeroed(x: &Tensor, key_padding_mask: Option<&Tensor>) -> Result<Tensor> {
    let Some(mask) = key_padding_mask else { return Ok(x.clone()) };
    let (batch, _, len, _) = x.dims4()?;
    let mask = mask.reshape((batch, 1, len, 1))?.broadcast_as(x.shape())?;
    mask.where_cond(&x.zeros_like()?, x)
}

/// Whether each position is padding, by row of the batch: `key_padding_mask (batch, len)`, 1 = padding.
pub(crate) fn rows(key_padding_mask: &Tensor) -> Result<Vec<Vec<bool>>> {
    let rows: Vec<Vec<u8>> = key_padding_mask.to_vec2()?;
    Ok(rows.into_iter().map(|row| row.into_iter().map(|flag| flag != 0).collect()).collect())
}

/// A mask to add to scores: −∞ where `flags` are 1, else 0.
pub(crate) fn additive(flags: &Tensor, dtype: DType) -> Result<Tensor> {
    let zeros = Tensor::zeros(flags.shape(), dtype, flags.device())?;
    flags.where_cond(&(&zeros + f64::NEG_INFINITY)?, &zeros)
}
