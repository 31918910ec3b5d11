//! Sums over rows, in two steps: parts in parallel, and these in their order.

use candle_core::{DType, Device, Result, Tensor};

use super::buffer::Buffer;
use super::launch::Launch;
use super::lists::{self, Item};
use super::wide;

/// How many parts, and of how many rows each.
pub(crate) fn parts(n_rows: usize) -> (usize, usize) {
    let per_part = n_rows.div_ceil(256).max(32);
    (n_rows.div_ceil(per_part), per_part)
}

/// `x (.., width)`, contiguous → the sums over all rows, `(width)`
pub(crate) fn over_rows(x: &Tensor, width: usize) -> Result<Buffer> {
    let n_rows = x.elem_count() / width;
    let (n_parts, per_part) = parts(n_rows);
    let mut of_parts = Buffer::unwritten(n_parts * width, wide(x.dtype()), x.device())?;
    Launch::new("rows", "sum_rows", x)?
        .grid([width.div_ceil(128), n_parts, 1], 128)
        .read(x)?
        .write(&mut of_parts)?
        .size(n_rows)
        .size(width)
        .size(per_part)
        .run()?;
    add_parts(x, &of_parts, 0, n_parts, width)
}

/// Parts `(n_parts, width)` in `Wide`s, added to numbers like those of `x`. They begin `skip` sums into
/// `parts`.
pub(crate) fn add_parts(
    x: &Tensor,
    parts: &Buffer,
    skip: usize,
    n_parts: usize,
    width: usize,
) -> Result<Buffer> {
    let mut sum = Buffer::unwritten(width, x.dtype(), x.device())?;
    Launch::new("rows", "add_parts", x)?
        .over(width)
        .read_buffer_from(parts, skip, wide(x.dtype()))?
        .write(&mut sum)?
        .size(n_parts)
        .size(width)
        .run()?;
    Ok(sum)
}

/// The sum of `n` `Wide`s, as one more, where numbers are like those of `x`.
pub(crate) fn of_all(x: &Tensor, terms: &Buffer, n: usize) -> Result<Buffer> {
    let mut sum = Buffer::unwritten(1, wide(x.dtype()), x.device())?;
    Launch::new("rows", "add_all", x)?
        .rows(1, n)
        .read_buffer(terms)?
        .write(&mut sum)?
        .size(n)
        .run()?;
    Ok(sum)
}

/// Σ x² over all of `tensors`, contiguous and of one dtype, in f64: `()`
pub(crate) fn of_squares(tensors: &[&Tensor]) -> Result<Tensor> {
    let Some(first) = tensors.first() else { return Tensor::new(0_f64, &Device::Cpu) };
    let chunks = || tensors.chunks(lists::MOST);
    let blocks = |chunk: &[&Tensor]| lists::n_blocks(chunk.iter().map(|x| x.elem_count()));
    let n_parts = chunks().map(|chunk| chunk.len() * blocks(chunk)).sum();
    let mut parts = Buffer::unwritten(n_parts, DType::F64, first.device())?;
    let mut done = 0;
    for chunk in chunks() {
        let slots: Vec<_> = chunk.iter().map(|x| (x.elem_count(), [Item::Tensor(x)])).collect();
        Launch::lists("sum_of_squares", first, &slots)?
            .write_from(&mut parts, done, DType::F64)?
            .run()?;
        done += chunk.len() * blocks(chunk);
    }
    let mut sum = Buffer::unwritten(1, DType::F64, first.device())?;
    Launch::new("optimizers", "add_squares", first)?
        .grid([1; 3], 256)
        .read_buffer(&parts)?
        .write(&mut sum)?
        .size(n_parts)
        .run()?;
    sum.tensor(())
}
