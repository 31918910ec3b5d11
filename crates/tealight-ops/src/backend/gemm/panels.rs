//! Packing B as pairs: panels of 32 columns.
//!
//! A panel has a row of 32 pairs for every two depths. If elements are split into `PARTS` of 3, the first parts of 32
//! depths are in 16 such rows, their second parts in the next 16, and their third parts in the 16 after those.

#![expect(unsafe_code, reason = "instructions that pulp does not have, and masked loads")]

use std::arch::x86_64::{__m512i, _mm512_setzero_si512, _mm512_storeu_si512};

use pulp::bytemuck::cast_slice_mut;

use super::pairs::{
    LANES, element, first_lanes, interleaved, load, pairs, pairs_of_line, split, transposed_pairs,
    with_bf16,
};
use super::strip::prefetch;
use crate::backend::matrix::Matrix;

/// Columns of a panel.
pub(super) const WIDTH: usize = 2 * LANES;

/// Packs B (depth, columns) into panels (⌈columns / 32⌉, `PARTS` · pairs, 32), padded with zeros.
pub(super) fn pack_panels<const PARTS: usize>(b: Matrix<'_, f32>, panels: &mut [f32]) {
    let panels = cast_slice_mut(panels);
    // SAFETY: this is a function of the kernel, which is used on processors with the instructions only.
    unsafe {
        match (b.row_stride(), b.column_stride()) {
            (_, 1) => panels_of_rows::<PARTS>(b, panels),
            (1, _) => panels_of_columns::<PARTS>(b, panels),
            _ => gather_panels::<PARTS>(b, panels),
        }
    }
}

with_bf16! {
    /// For contiguous rows of B: the two rows of a pair are rounded together and interleaved.
    unsafe fn panels_of_rows<const PARTS: usize>(b: Matrix<'_, f32>, panels: &mut [u32]) {
        /// The number of rows by which prefetching is ahead.
        const AHEAD: usize = 16;
        let n_pairs = n_pairs::<PARTS>(&b, panels);
        let (depth, columns) = (b.rows(), b.columns());
        let row = |p: usize, j: usize| b.data().as_ptr().wrapping_add(p * b.row_stride() + j);
        for (i, panel) in panels.chunks_exact_mut(n_pairs * PARTS * WIDTH).enumerate() {
            let columns = [i * WIDTH, i * WIDTH + LANES].map(|j| (j, first_lanes(columns.saturating_sub(j))));
            for pair in 0..n_pairs {
                let p = 2 * pair;
                for (half, (j, mask)) in columns.into_iter().enumerate() {
                    prefetch(row(p + AHEAD, j));
                    prefetch(row(p + AHEAD + 1, j));
                    // SAFETY: the rows exist, and the mask has their columns only.
                    let [low, high] = unsafe {
                        [load(row(p, j), mask, p < depth), load(row(p + 1, j), mask, p + 1 < depth)]
                    };
                    // SAFETY: as for this function.
                    let parts = unsafe { split::<PARTS>(low, high) };
                    for (part, pairs) in parts.into_iter().enumerate() {
                        // SAFETY: as for this function.
                        unsafe { store(panel, packed_row::<PARTS>(pair, part), half, interleaved(pairs)) };
                    }
                }
            }
        }
    }
}

with_bf16! {
    /// Columns of B that are contiguous: 32 elements of each of 16 columns are rounded and transposed as pairs.
    unsafe fn panels_of_columns<const PARTS: usize>(b: Matrix<'_, f32>, panels: &mut [u32]) {
        let n_pairs = n_pairs::<PARTS>(&b, panels);
        let columns = b.transposed();
        for (i, panel) in panels.chunks_exact_mut(n_pairs * PARTS * WIDTH).enumerate() {
            for p in (0..n_pairs).step_by(LANES) {
                let n_here = LANES.min(n_pairs - p);
                for half in 0..2 {
                    // SAFETY: as for this function.
                    let parts = unsafe { pairs_of_lines::<PARTS>(&columns, i * WIDTH + half * LANES, 2 * p) };
                    for (part, lines) in parts.into_iter().enumerate() {
                        // SAFETY: as for this function.
                        let square = unsafe { transposed_pairs(lines) };
                        let first = packed_row::<PARTS>(p, part);
                        for (x, pairs) in square.into_iter().enumerate().take(n_here) {
                            // SAFETY: as for this function.
                            unsafe { store(panel, first + x, half, pairs) };
                        }
                    }
                }
            }
        }
    }
}

with_bf16! {
    /// The parts of 32 elements from `at` on of each of 16 rows from `first` on. Elements outside of the matrix are
    /// zero.
    #[inline]
    unsafe fn pairs_of_lines<const PARTS: usize>(
        rows: &Matrix<'_, f32>,
        first: usize,
        at: usize,
    ) -> [[__m512i; LANES]; PARTS] {
        let mut parts = [[_mm512_setzero_si512(); LANES]; PARTS];
        for x in 0..LANES {
            let line = if first + x < rows.rows() { rows.row(first + x) } else { &[] };
            // SAFETY: as for this function.
            let pairs = unsafe { pairs_of_line::<PARTS>(line, at) };
            for (lines, pairs) in parts.iter_mut().zip(pairs) {
                lines[x] = pairs;
            }
        }
        parts
    }
}

with_bf16! {
    /// Stores pairs in the left (0) or the right (1) half of a row of a panel.
    #[inline]
    unsafe fn store(panel: &mut [u32], row: usize, half: usize, pairs: __m512i) {
        let to = &mut panel[row * WIDTH + half * LANES..][..LANES];
        // SAFETY: `to` has as many elements.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs) };
    }
}

/// The number of pairs in a panel of B, including the pairs that pad its depth.
fn n_pairs<const PARTS: usize>(b: &Matrix<'_, f32>, panels: &[u32]) -> usize {
    panels.len() / (b.columns().next_multiple_of(WIDTH) * PARTS)
}

/// The row of a panel that holds this part of a pair of depths.
fn packed_row<const PARTS: usize>(pair: usize, part: usize) -> usize {
    pair / LANES * LANES * PARTS + part * LANES + pair % LANES
}

/// B with any strides, element by element.
pub(super) fn gather_panels<const PARTS: usize>(b: Matrix<'_, f32>, panels: &mut [u32]) {
    let n_pairs = n_pairs::<PARTS>(&b, panels);
    for (i, panel) in panels.chunks_exact_mut(n_pairs * PARTS * WIDTH).enumerate() {
        for p in 0..n_pairs {
            for j in 0..WIDTH {
                let at = |p| element(&b, p, i * WIDTH + j);
                for (part, pair) in pairs::<PARTS>(at(2 * p), at(2 * p + 1)).into_iter().enumerate()
                {
                    panel[packed_row::<PARTS>(p, part) * WIDTH + j] = pair;
                }
            }
        }
    }
}
