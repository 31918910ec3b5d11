//! The definition, in plain tensor operations.

use candle_core::{D, DType, Result, Tensor};

/// `table (vocab_size, d_model)`, `ids (..)` → `(.., d_model)`
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (_, d_model) = table.dims2()?;
    let shape = [ids.dims(), &[d_model]].concat();
    table.index_select(&ids.flatten_all()?.contiguous()?, 0)?.reshape(shape)
}

/// The same, without a gradient at the positions of the id `padding`.
pub fn embedding_with_padding(table: &Tensor, ids: &Tensor, padding: u32) -> Result<Tensor> {
    let y = embedding(table, ids)?;
    let is_padding = ids.to_dtype(DType::I64)?.eq(i64::from(padding))?.unsqueeze(D::Minus1)?;
    is_padding.broadcast_as(y.shape())?.where_cond(&y.detach(), &y)
}
