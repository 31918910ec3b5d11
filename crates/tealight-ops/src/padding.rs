//! Padding masks, read where a loop or a plan depends on the single position.

use candle_core::{DType, Result, Tensor};

/// What is padding, by row of the batch: `key_padding_mask (batch, len)`, 1 = padding.
pub(crate) fn rows(key_padding_mask: &Tensor) -> Result<Vec<Vec<bool>>> {
    let rows: Vec<Vec<u8>> = key_padding_mask.to_dtype(DType::U8)?.to_vec2()?;
    Ok(rows.into_iter().map(|row| row.into_iter().map(|flag| flag != 0).collect()).collect())
}
