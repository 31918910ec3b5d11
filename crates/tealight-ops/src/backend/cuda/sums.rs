//! Sums with a fixed order of additions: parts are computed in parallel, then added in order.

use candle_core::{DType, Result, Tensor};

use super::buffer::Buffer;
use super::launch::Launch;
use super::lists::{self, Item};
use super::source::Source;
use super::wide;

const KERNELS: Source = Source::new("sums", &[lists::HEADER, include_str!("sums.cu")]);

/// The number of parts, and the rows of each part.
pub(crate) fn parts(n_rows: usize) -> (usize, usize) {
    let per_part = n_rows.div_ceil(256).max(32);
    (n_rows.div_ceil(per_part), per_part)
}

/// `x (.., width)`, contiguous → the sums over all rows, `(width)`
pub(crate) fn over_rows(x: &Tensor, width: usize) -> Result<Buffer> {
    let n_rows = x.elem_count() / width;
    let (n_parts, per_part) = parts(n_rows);
    let mut of_parts = Buffer::unwritten(n_parts * width, wide(x.dtype()), x.device())?;
    Launch::new(&KERNELS, "sum_rows", x)?
        .grid([width.div_ceil(128), n_parts, 1], 128)
        .read(x)?
        .write(&mut of_parts)?
        .sizes([n_rows, width, per_part])
        .run()?;
    add_parts(x, &of_parts, 0, n_parts, width)
}

/// The sum over parts `(n_parts, width)` in `Wide`, which begin at element `first` of `parts`: `(width)`, of the
/// dtype of `x`.
pub(crate) fn add_parts(
    x: &Tensor,
    parts: &Buffer,
    first: usize,
    n_parts: usize,
    width: usize,
) -> Result<Buffer> {
    let mut sum = Buffer::unwritten(width, x.dtype(), x.device())?;
    Launch::new(&KERNELS, "add_parts", x)?
        .grid([width.div_ceil(32), 1, 1], 256)
        .read_buffer_from(parts, first)?
        .write(&mut sum)?
        .sizes([n_parts, width])
        .run()?;
    Ok(sum)
}

/// The sum of `n` terms in the `Wide` of the dtype of `x`: one element of it.
pub(crate) fn of_all(x: &Tensor, terms: &Buffer, n: usize) -> Result<Buffer> {
    let mut sum = Buffer::unwritten(1, wide(x.dtype()), x.device())?;
    Launch::new(&KERNELS, "add_all", x)?
        .rows(1, n)
        .read_buffer(terms)?
        .write(&mut sum)?
        .size(n)
        .run()?;
    Ok(sum)
}

/// Σ x² over each of `tensors`, contiguous and of one dtype, in f64. Waits for the device once.
///
/// A sum does not depend on the other tensors: a tensor is divided among as many blocks as its own length asks for.
pub(crate) fn of_squares(tensors: &[&Tensor]) -> Result<Vec<f64>> {
    let Some(first) = tensors.first() else { return Ok(Vec::new()) };
    let mut sums = Buffer::unwritten(tensors.len(), DType::F64, first.device())?;
    for (number, chunk) in tensors.chunks(lists::MOST).enumerate() {
        let n_blocks = lists::n_blocks(chunk.iter().map(|x| x.elem_count()));
        let mut parts = Buffer::unwritten(chunk.len() * n_blocks, DType::F64, first.device())?;
        let slots = chunk.iter().map(|x| (x.elem_count(), [Item::Tensor(x)])).collect();
        Launch::lists(&KERNELS, "sum_of_squares", first, slots)?.write(&mut parts)?.run()?;
        Launch::new(&KERNELS, "add_squares", first)?
            .grid([chunk.len(), 1, 1], 256)
            .read_buffer(&parts)?
            .write_from(&mut sums, number * lists::MOST)?
            .size(n_blocks)
            .run()?;
    }
    sums.tensor(tensors.len())?.to_vec1()
}
