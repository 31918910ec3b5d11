//! Packing: copies of blocks of A and B in the order in which the micro-kernel reads them.

use pulp::{Simd, WithSimd};

use super::strip::prefetch;
use super::transpose::Transpose;
use crate::backend::matrix::Matrix;
use crate::backend::simd::vector::{Lanes, lanes};

/// B (depth, columns) → panels (⌈columns / width⌉, depth, width), as wide as a tile. The last is padded with zeros.
pub(super) struct PackPanels<'a, T> {
    pub(super) b: Matrix<'a, T>,
    pub(super) panels: &'a mut [T],
}

impl<T: Lanes> WithSimd for PackPanels<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let width = 2 * lanes::<T, S>();
        let (depth, columns) = (self.b.rows(), self.b.columns());
        let (row_stride, column_stride) = (self.b.row_stride(), self.b.column_stride());
        for (i, to) in self.panels.chunks_exact_mut(depth * width).enumerate() {
            let columns = width.min(columns - i * width);
            let from = &self.b.data()[i * width * column_stride..];
            if columns < width {
                to.fill(T::ZERO);
            }
            if column_stride == 1 && columns == width {
                copy_rows(from, row_stride, to, width);
            } else if row_stride == 1 {
                Transpose { from, stride: column_stride, to, width }.run::<S>(columns, depth);
            } else {
                gather(from, (row_stride, column_stride), to, (depth, columns), width);
            }
        }
    }
}

/// A (rows, depth) with contiguous columns → (depth, `STRIPS`, `PADDED`). Of the `PADDED` elements, the first
/// `n_rows` are used.
///
/// The strips are interleaved, so that packing writes memory sequentially.
pub(super) struct PackStrips<'a, T, const PADDED: usize> {
    pub(super) a: Matrix<'a, T>,
    pub(super) n_rows: usize,
    pub(super) strips: &'a mut [T],
}

/// Strips per block. An odd number, so that the cache lines of a strip fall into different sets of the cache.
pub(super) const STRIPS: usize = 7;

impl<T: Lanes, const PADDED: usize> WithSimd for PackStrips<'_, T, PADDED> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        /// The number of columns by which prefetching is ahead.
        const AHEAD: usize = 8;
        let (rows, stride) = (self.a.rows(), self.a.column_stride());
        for (p, to) in self.strips.chunks_exact_mut(STRIPS * PADDED).enumerate() {
            let column = &self.a.data()[p * stride..];
            for i in (0..rows).step_by(64 / size_of::<T>()) {
                prefetch(column.as_ptr().wrapping_add(AHEAD * stride + i));
            }
            for (i, to) in (0..rows).step_by(self.n_rows).zip(to.chunks_exact_mut(PADDED)) {
                if let Some(from) = column[i..].first_chunk::<PADDED>() {
                    to.copy_from_slice(from);
                } else {
                    to[..rows - i].copy_from_slice(&column[i..rows]);
                }
            }
        }
    }
}

/// Rows of `width` elements, `stride` apart → contiguous rows.
#[inline(always)]
fn copy_rows<T: Lanes>(from: &[T], stride: usize, to: &mut [T], width: usize) {
    for (p, to) in to.chunks_exact_mut(width).enumerate() {
        to.copy_from_slice(&from[p * stride..][..width]);
    }
}

/// (rows, columns) with any strides → rows `width` apart, element by element.
#[inline(always)]
fn gather<T: Lanes>(
    from: &[T],
    (row_stride, column_stride): (usize, usize),
    to: &mut [T],
    (rows, columns): (usize, usize),
    width: usize,
) {
    for i in 0..rows {
        for j in 0..columns {
            to[i * width + j] = from[i * row_stride + j * column_stride];
        }
    }
}
