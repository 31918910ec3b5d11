//! Swaps two axes, as heads and positions in attention.
//!
//! ```text
//! y_bmn = x_bnm              dx_bnm = g_bmn         of rows of `width`
//! ```
//!
//! Candle's copy of a strided tensor goes element by element, on one thread.

mod cuda;
pub mod reference;

use candle_core::{Result, Tensor};

use crate::autograd::graph::{Saved, fused};
use crate::backend::buffer::unwritten;
use crate::backend::choice::{dispatch, widened};
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};

const NAME: &str = "swap axes";

/// `x (batch, n, m, width)` → `(batch, m, n, width)`, contiguous
///
/// # Errors
/// If `x` has other axes.
pub fn swap_axes(x: &Tensor) -> Result<Tensor> {
    let (batch, n, m, width) = x.dims4()?;
    dispatch!(match [x] {
        Cpu(T) => fused(NAME, [x], (batch, m, n, width), Saved::Nothing, |[x]| {
            (swapped::<T>(x, [n, m, width]), move |_, _, g| [swapped(g, [m, n, width])])
        }),
        Cuda => cuda::swap_axes(x),
        Reference => widened(x, reference::swap_axes),
    })
}

/// `(batch, n, m, width)` → `(batch, m, n, width)`
pub(crate) fn swapped<T: Element>(x: &[T], [n, m, width]: [usize; 3]) -> Vec<T> {
    let mut y = unwritten(x.len());
    let rows_per_block = (block_len(n * width) / (n * width)).max(1);
    run::<T, _, _>(
        x.len(),
        y.chunks_mut(rows_per_block * n * width).enumerate(),
        #[inline(always)]
        |(block, rows): (usize, &mut [T])| {
            for (row, y) in rows.chunks_exact_mut(n * width).enumerate() {
                let row = block * rows_per_block + row;
                let (example, column) = (row / m, row % m);
                for (i, y) in y.chunks_exact_mut(width).enumerate() {
                    let at = ((example * n + i) * m + column) * width;
                    y.copy_from_slice(&x[at..at + width]);
                }
            }
        },
    );
    y
}
