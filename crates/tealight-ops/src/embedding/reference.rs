//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

/// `table (vocab_size, d_model)`, `ids (..)` → `(.., d_model)`
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    let (_, d_model) = table.dims2()?;
    let shape = [ids.dims(), &[d_model]].concat();
    table.index_select(&ids.flatten_all()?.contiguous()?, 0)?.reshape(shape)
}
