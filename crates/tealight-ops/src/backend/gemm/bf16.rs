//! Products whose operands are rounded to bf16 while they are packed, by AVX-512. Sums are f32.
//!
//! A packed element is a pair of bf16 (see [`pairs`](super::pairs)). Where the depth ends within a pair, the other half
//! is zero in A and in B. The micro-kernel is that of f32, with pairs as elements: VDPBF16PS adds both products of a
//! pair, first the product of the upper halves.

#![expect(unsafe_code, reason = "instructions that pulp does not have, and masked loads")]

use std::arch::x86_64::{
    __m512bh, __m512i, _mm512_dpbf16_ps, _mm512_mask_storeu_epi32, _mm512_storeu_si512,
};
use std::mem::transmute;

use pulp::bytemuck::{cast, cast_slice_mut};
use pulp::{Simd, WithSimd};

use super::kernel::{COLUMNS, HEIGHT, Kernel, LARGE_TASK, dots};
use super::pack::STRIPS;
use super::pairs::{
    LANES, element, first_lanes, interleaved, load, pairs, pairs_of_line, split, with_bf16,
};
use super::panels::{WIDTH, pack_panels};
use super::strip::{Rows, Strided, Strip, Strips, Terms, prefetch};
use crate::backend::matrix::Matrix;
use crate::backend::simd::Detected;

/// Rows of a packed strip of columns, with padding.
const PADDED: usize = 16;

macro_rules! strips {
    ($($rows:literal)*) => { &[$(strip::<$rows>),*] };
}

/// The kernel of VDPBF16PS. Only for processors that have it.
pub(super) static AVX512: Kernel<f32> = Kernel {
    width: WIDTH,
    padded_rows: PADDED,
    depth_unit: 2,
    packed_unit: 1,
    block_depth: 1024,
    block_columns: COLUMNS,
    large_task: LARGE_TASK,
    fewest: 32,
    height: HEIGHT,
    strips: strips!(1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    dots: dots::<pulp::x86::V4, f32>,
    pack_panels: pack_panels::<1>,
    pack_strips,
};

with_bf16! {
    /// # Safety
    /// As for [`strip::run`](super::strip::run), on a processor with VDPBF16PS.
    unsafe fn strip<const ROWS: usize>(strip: &Strip<f32>) {
        // SAFETY: as for this function.
        unsafe { Rows::<f32, TwoProducts, ROWS>::from_strip(strip) }.with_simd(pulp::x86::V4::detected());
    }
}

/// The two products of a pair.
struct TwoProducts;

impl Terms<f32> for TwoProducts {
    #[inline(always)]
    fn add<S: Simd>(_: S, a: S::f32s, b: S::f32s, sum: S::f32s) -> S::f32s {
        let [a, b]: [__m512i; 2] = [cast(a), cast(b)];
        // SAFETY: this is part of a kernel that runs only on processors with the instruction. Vectors of one size are
        // reinterpreted.
        cast(unsafe {
            let [a, b] = transmute::<[__m512i; 2], [__m512bh; 2]>([a, b]);
            _mm512_dpbf16_ps(cast(sum), a, b)
        })
    }
}

/// Packs A (rows, depth) into strips of `n_rows`: columns that are contiguous into (pairs, `STRIPS`, `PADDED`), all
/// others into (rows, pairs).
fn pack_strips(a: Matrix<'_, f32>, n_rows: usize, strips: &mut [f32]) -> Strips<f32> {
    let n_pairs = a.columns().div_ceil(2);
    let packed = cast_slice_mut(strips);
    let (row_stride, column_stride, stride) = if a.row_stride() == 1 && a.column_stride() != 1 {
        // SAFETY: as in `pack_panels`.
        unsafe { strips_of_columns(a, n_rows, packed) };
        (1, STRIPS * PADDED, PADDED)
    } else {
        if a.column_stride() == 1 {
            // SAFETY: as in `pack_panels`.
            unsafe { strips_of_rows(a, packed) };
        } else {
            gather_rows(a, packed);
        }
        (n_pairs, 1, n_rows * n_pairs)
    };
    // Packing writes through `packed`, which would invalidate a pointer that was taken before.
    Strips { first: Strided { first: strips.as_ptr(), row_stride, column_stride }, stride }
}

with_bf16! {
    /// For contiguous columns of A: the two columns of a pair are rounded together and interleaved.
    unsafe fn strips_of_columns(a: Matrix<'_, f32>, n_rows: usize, strips: &mut [u32]) {
        /// The number of columns by which prefetching is ahead.
        const AHEAD: usize = 16;
        let (rows, depth) = (a.rows(), a.columns());
        let column = |i: usize, p: usize| a.data().as_ptr().wrapping_add(p * a.column_stride() + i);
        for (p, to) in strips.chunks_exact_mut(STRIPS * PADDED).take(depth.div_ceil(2)).enumerate() {
            let p = 2 * p;
            for i in (0..rows).step_by(LANES) {
                prefetch(column(i, p + AHEAD));
                prefetch(column(i, p + AHEAD + 1));
            }
            for (i, to) in (0..rows).step_by(n_rows).zip(to.chunks_exact_mut(PADDED)) {
                let mask = first_lanes(n_rows.min(rows - i));
                // SAFETY: the columns exist, and the mask has their rows only.
                let [low, high] = unsafe {
                    [load(column(i, p), mask, p < depth), load(column(i, p + 1), mask, p + 1 < depth)]
                };
                // SAFETY: `to` has as many elements.
                unsafe {
                    let [pairs] = split(low, high);
                    _mm512_storeu_si512(to.as_mut_ptr().cast(), interleaved(pairs));
                }
            }
        }
    }
}

with_bf16! {
    /// Rows of A that are contiguous: each is rounded, which makes pairs of its elements.
    unsafe fn strips_of_rows(a: Matrix<'_, f32>, strips: &mut [u32]) {
        let n_pairs = a.columns().div_ceil(2);
        for (i, to) in strips.chunks_exact_mut(n_pairs).take(a.rows()).enumerate() {
            for (p, to) in (0..n_pairs).step_by(LANES).zip(to.chunks_mut(LANES)) {
                // SAFETY: row i exists.
                let [pairs] = unsafe { pairs_of_line(a.row(i), 2 * p) };
                // SAFETY: the mask has the elements of `to` only.
                unsafe { _mm512_mask_storeu_epi32(to.as_mut_ptr().cast(), first_lanes(to.len()), pairs) };
            }
        }
    }
}

/// A with any strides, element by element.
fn gather_rows(a: Matrix<'_, f32>, strips: &mut [u32]) {
    let n_pairs = a.columns().div_ceil(2);
    for (i, row) in strips.chunks_exact_mut(n_pairs).take(a.rows()).enumerate() {
        for (p, to) in row.iter_mut().enumerate() {
            [*to] = pairs(element(&a, i, 2 * p), element(&a, i, 2 * p + 1));
        }
    }
}
