//! Packing A as tiles of pairs.

#![expect(unsafe_code, reason = "instructions that pulp does not have, and masked loads")]

use std::arch::x86_64::{_mm512_setzero_si512, _mm512_storeu_si512};

use pulp::bytemuck::cast_slice_mut;

use super::{DEPTH, SIDE, TILE};
use crate::backend::gemm::pairs::{
    element, first_lanes, interleaved, load, pairs, pairs_of_line, split, transposed_pairs,
    with_bf16,
};
use crate::backend::gemm::strip::{Strided, Strips};
use crate::backend::matrix::Matrix;

/// Packs A (rows, depth) into strips of `n_rows`, each (depth / 32, parts, 2, 16 rows, 16 pairs).
pub(super) fn pack_strips<const PARTS: usize>(
    a: Matrix<'_, f32>,
    n_rows: usize,
    strips: &mut [f32],
) -> Strips<f32> {
    match (a.row_stride(), a.column_stride()) {
        (_, 1) => pack_tiles::<PARTS>(a, n_rows, strips, |a, tiles| {
            // SAFETY: this is a function of the kernel, which is used on processors with the instructions only.
            unsafe { tiles_of_rows(a, tiles) };
        }),
        (1, _) => pack_tiles::<PARTS>(a, n_rows, strips, |a, tiles| {
            // SAFETY: as above.
            unsafe { tiles_of_columns(a, tiles) };
        }),
        _ => gather_strips::<PARTS>(a, n_rows, strips),
    }
}

/// As [`pack_strips`], with any strides, element by element.
pub(crate) fn gather_strips<const PARTS: usize>(
    a: Matrix<'_, f32>,
    n_rows: usize,
    strips: &mut [f32],
) -> Strips<f32> {
    pack_tiles::<PARTS>(a, n_rows, strips, gather_tiles)
}

/// Packs the tiles of every part by `pack`, from at most 16 rows of at most 32 depths. Rows and depths that are missing
/// there are zeros in the tiles.
#[inline(always)]
fn pack_tiles<const PARTS: usize>(
    a: Matrix<'_, f32>,
    n_rows: usize,
    strips: &mut [f32],
    pack: impl Fn(Matrix<'_, f32>, [&mut [u32]; PARTS]),
) -> Strips<f32> {
    let (rows, depth) = (a.rows(), a.columns());
    let len = 2 * PARTS * TILE;
    let stride = len * depth.div_ceil(DEPTH);
    let pairs = cast_slice_mut(strips);
    for (p, at) in (0..depth).step_by(DEPTH).zip((0..).step_by(len)) {
        for (i, strip) in (0..rows).step_by(n_rows).zip(pairs.chunks_exact_mut(stride)) {
            let end = rows.min(i + n_rows);
            for half in 0..2 {
                let start = end.min(i + half * SIDE);
                let block = a.block(start..end.min(start + SIDE), p..depth.min(p + DEPTH));
                let mut tiles = strip[at..][..len].chunks_exact_mut(TILE).skip(half).step_by(2);
                pack(block, std::array::from_fn(|_| tiles.next().expect("a tile of each part")));
            }
        }
    }
    let first = Strided { first: strips.as_ptr(), row_stride: SIDE, column_stride: 1 };
    Strips { first, stride }
}

with_bf16! {
    /// Rows that are contiguous: each is rounded, which makes pairs of its elements.
    unsafe fn tiles_of_rows<const PARTS: usize>(a: Matrix<'_, f32>, mut tiles: [&mut [u32]; PARTS]) {
        for i in 0..SIDE {
            let row = if i < a.rows() { a.row(i) } else { &[] };
            // SAFETY: as for this function.
            let parts = unsafe { pairs_of_line::<PARTS>(row, 0) };
            for (tile, pairs) in tiles.iter_mut().zip(parts) {
                // SAFETY: a tile has 16 rows of as many elements.
                unsafe { _mm512_storeu_si512(tile[i * SIDE..][..SIDE].as_mut_ptr().cast(), pairs) };
            }
        }
    }
}

with_bf16! {
    /// For contiguous columns: the two columns of a pair are rounded together and interleaved, then 16 × 16 pairs are
    /// transposed.
    unsafe fn tiles_of_columns<const PARTS: usize>(a: Matrix<'_, f32>, tiles: [&mut [u32]; PARTS]) {
        let (mask, depth) = (first_lanes(a.rows()), a.columns());
        let column = |p: usize| {
            let from = a.data().as_ptr().wrapping_add(p * a.column_stride());
            // SAFETY: the mask has the elements of a column only.
            unsafe { load(from, mask, p < depth) }
        };
        let mut parts = [[_mm512_setzero_si512(); SIDE]; PARTS];
        for p in 0..SIDE {
            // SAFETY: as for this function.
            let halves = unsafe { split::<PARTS>(column(2 * p), column(2 * p + 1)) };
            for (pairs, halves) in parts.iter_mut().zip(halves) {
                // SAFETY: as for this function.
                pairs[p] = unsafe { interleaved(halves) };
            }
        }
        for (pairs, tile) in parts.into_iter().zip(tiles) {
            // SAFETY: as for this function.
            let rows = unsafe { transposed_pairs(pairs) };
            for (row, to) in rows.into_iter().zip(tile.chunks_exact_mut(SIDE)) {
                // SAFETY: `to` has as many elements.
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), row) };
            }
        }
    }
}

/// Any strides.
fn gather_tiles<const PARTS: usize>(a: Matrix<'_, f32>, mut tiles: [&mut [u32]; PARTS]) {
    for i in 0..SIDE {
        for p in 0..SIDE {
            let parts = pairs::<PARTS>(element(&a, i, 2 * p), element(&a, i, 2 * p + 1));
            for (tile, pair) in tiles.iter_mut().zip(parts) {
                tile[i * SIDE + p] = pair;
            }
        }
    }
}
