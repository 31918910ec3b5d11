//! Embedding: rows of a table, by id.
//!
//! ```text
//! y_p = table[id_p]        dtable[v] = Σ g_p over the positions p with id_p = v, in their order
//! ```
//!
//! [`embedding_with_padding`] leaves the row of padding without a gradient, as `padding_idx` of PyTorch's
//! `nn.Embedding`.
//!
//! Cost: the gradient has the size of the whole table, however few ids there are.

mod cpu;
mod cuda;
pub mod reference;

use candle_core::{DType, Result, Shape, Tensor, bail};

use crate::autograd::graph::{Saved, fused};
use crate::backend::buffer::check_integers;
use crate::backend::choice::dispatch;

const NAME: &str = "embedding";

/// `table (vocab_size, d_model)`, `ids (..)` → `(.., d_model)`
///
/// Ids are of any integer dtype: u8, u32, i16, i32 or i64.
///
/// # Errors
/// If an id is not a row of the table.
pub fn embedding(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
    look_up(table, ids, None)
}

/// The same, but the row `padding` has a gradient of zero.
///
/// # Errors
/// If an id is not a row of the table.
pub fn embedding_with_padding(table: &Tensor, ids: &Tensor, padding: u32) -> Result<Tensor> {
    look_up(table, ids, Some(padding))
}

fn look_up(table: &Tensor, ids: &Tensor, padding: Option<u32>) -> Result<Tensor> {
    let (vocab_size, d_model) = table.dims2()?;
    let shape = Shape::from([ids.dims(), &[d_model]].concat());
    let rows = || rows(ids, vocab_size);
    dispatch!(match [table] {
        Cpu(T) => {
            let rows = rows()?;
            let padding = padding.map(|row| row as usize);
            fused(NAME, [table], shape, Saved::Nothing, |[table]| {
                let y = cpu::gather::<T>(table, &rows, d_model);
                let sizes = [vocab_size, d_model];
                (y, move |_, _, g| [cpu::scatter_add(g, &rows, padding, sizes)])
            })
        }
        Cuda if shape.elem_count() > 0 => {
            check_integers("ids", ids)?;
            cuda::look_up(table, ids, padding)
        }
        Cuda | Reference => {
            rows()?;
            let ids = ids.to_dtype(DType::I64)?;
            match padding {
                Some(padding) => reference::embedding_with_padding(table, &ids, padding),
                None => reference::embedding(table, &ids),
            }
        }
    })
}

fn rows(ids: &Tensor, vocab_size: usize) -> Result<Vec<usize>> {
    let row = |id: i64| match usize::try_from(id) {
        Ok(row) if row < vocab_size => Ok(row),
        _ => bail!("id {id} is out of range for a vocabulary of {vocab_size}"),
    };
    check_integers("ids", ids)?;
    ids.to_dtype(DType::I64)?.flatten_all()?.to_vec1()?.into_iter().map(row).collect()
}
