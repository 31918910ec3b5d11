//! Products whose operands are rounded to bf16 while they are packed, by AVX-512. Sums are f32.
//!
//! A packed element is a pair: the bf16 of two consecutive depths, the first in the lower half. Where the depth ends
//! within a pair, the other half is zero in A and in B. The micro-kernel is that of f32 with pairs for elements:
//! VDPBF16PS adds both products of a pair, first that of the upper halves.
//!
//! Rounding is to nearest, ties to even; denormal numbers become zero (VCVTNE2PS2BF16).

#![expect(unsafe_code, reason = "instructions that pulp does not have, and masked loads")]

use std::arch::x86_64::{
    __m512, __m512bh, __m512i, _mm512_cvtne2ps_pbh, _mm512_dpbf16_ps, _mm512_mask_storeu_epi32,
    _mm512_maskz_loadu_ps, _mm512_permutexvar_epi16, _mm512_setzero_ps, _mm512_setzero_si512,
    _mm512_storeu_si512,
};
use std::mem::transmute;

use pulp::bytemuck::{cast, cast_slice_mut};
use pulp::{Simd, WithSimd};

use super::kernel::{COLUMNS, HEIGHT, Kernel, LARGE_TASK, dots};
use super::pack::STRIPS;
use super::strip::{Rows, Strided, Strip, Strips, Terms, prefetch};
use super::transpose::avx512::transposed;
use crate::backend::matrix::Matrix;
use crate::backend::simd::Detected;
use crate::backend::simd::bf16::rounded;

/// Elements of a vector.
const LANES: usize = 16;
/// Columns of a panel.
const WIDTH: usize = 2 * LANES;
/// Rows of a packed strip of columns, with padding.
const PADDED: usize = 16;

/// A function compiled with these instructions and those of pulp's V4.
macro_rules! with_bf16 {
    ($(#[$doc:meta])* $visibility:vis unsafe fn $($signature:tt)*) => {
        $(#[$doc])*
        #[target_feature(
            enable = "sse3,ssse3,sse4.1,sse4.2,popcnt,avx,avx2,bmi1,bmi2,fma,lzcnt,\
                      avx512f,avx512bw,avx512cd,avx512dq,avx512vl,avx512bf16"
        )]
        $visibility unsafe fn $($signature)*
    };
}

pub(super) use with_bf16;

macro_rules! strips {
    ($($rows:literal)*) => { &[$(strip::<$rows>),*] };
}

/// The kernel of VDPBF16PS. Only for processors that have it.
pub(super) static AVX512: Kernel<f32> = Kernel {
    width: WIDTH,
    padded_rows: PADDED,
    terms: 2,
    depth_unit: 2,
    block_depth: 1024,
    block_columns: COLUMNS,
    large_task: LARGE_TASK,
    height: HEIGHT,
    strips: strips!(1 2 3 4 5 6 7 8 9 10 11 12 13 14),
    dots: dots::<pulp::x86::V4, f32>,
    pack_panels,
    pack_strips,
};

with_bf16! {
    /// # Safety
    /// As for [`strip::run`](super::strip::run), on a processor with VDPBF16PS.
    unsafe fn strip<const ROWS: usize>(strip: &Strip<f32>) {
        // SAFETY: as for this function.
        unsafe { Rows::<f32, TwoProducts, ROWS>::of(strip) }.with_simd(pulp::x86::V4::detected());
    }
}

/// The two products of a pair.
struct TwoProducts;

impl Terms<f32> for TwoProducts {
    #[inline(always)]
    fn add<S: Simd>(_: S, a: S::f32s, b: S::f32s, sum: S::f32s) -> S::f32s {
        let [a, b]: [__m512i; 2] = [cast(a), cast(b)];
        // SAFETY: the kernel of which this is a part is used on processors with the instruction only. Vectors of one
        // size are reinterpreted.
        cast(unsafe {
            let [a, b] = transmute::<[__m512i; 2], [__m512bh; 2]>([a, b]);
            _mm512_dpbf16_ps(cast(sum), a, b)
        })
    }
}

/// Packs B (depth, columns) into panels (⌈columns / 32⌉, pairs, 32), padded with zeros.
pub(super) fn pack_panels(b: Matrix<'_, f32>, panels: &mut [f32]) {
    let panels = cast_slice_mut(panels);
    // SAFETY: this is a function of the kernel, which is used on processors with the instructions only.
    unsafe {
        match (b.row_stride(), b.column_stride()) {
            (_, 1) => panels_of_rows(b, panels),
            (1, _) => panels_of_columns(b, panels),
            _ => gather_panels(b, panels),
        }
    }
}

/// Packs A (rows, depth) into strips of `n_rows`: columns that are contiguous into (pairs, `STRIPS`, `PADDED`), all
/// others into (rows, pairs).
fn pack_strips(a: Matrix<'_, f32>, n_rows: usize, strips: &mut [f32]) -> Strips<f32> {
    let first = strips.as_ptr();
    let n_pairs = a.columns().div_ceil(2);
    let strips = cast_slice_mut(strips);
    if a.row_stride() == 1 && a.column_stride() != 1 {
        // SAFETY: as in `pack_panels`.
        unsafe { strips_of_columns(a, n_rows, strips) };
        let first = Strided { first, row_stride: 1, column_stride: STRIPS * PADDED };
        return Strips { first, stride: PADDED };
    }
    if a.column_stride() == 1 {
        // SAFETY: as in `pack_panels`.
        unsafe { strips_of_rows(a, strips) };
    } else {
        gather_rows(a, strips);
    }
    Strips {
        first: Strided { first, row_stride: n_pairs, column_stride: 1 },
        stride: n_rows * n_pairs,
    }
}

with_bf16! {
    /// Rows of B that are contiguous: those of a pair are rounded together and interleaved.
    unsafe fn panels_of_rows(b: Matrix<'_, f32>, panels: &mut [u32]) {
        /// The number of rows by which prefetching is ahead.
        const AHEAD: usize = 16;
        let n_pairs = n_pairs(&b, panels);
        let (depth, columns) = (b.rows(), b.columns());
        let row = |p: usize, j: usize| b.data().as_ptr().wrapping_add(p * b.row_stride() + j);
        for (i, panel) in panels.chunks_exact_mut(n_pairs * WIDTH).enumerate() {
            let columns = [i * WIDTH, i * WIDTH + LANES].map(|j| (j, first_lanes(columns.saturating_sub(j))));
            for (p, to) in panel.chunks_exact_mut(WIDTH).enumerate() {
                let p = 2 * p;
                for ((j, mask), to) in columns.into_iter().zip(to.chunks_exact_mut(LANES)) {
                    prefetch(row(p + AHEAD, j));
                    prefetch(row(p + AHEAD + 1, j));
                    // SAFETY: the rows exist, and the mask has their columns only.
                    let [low, high] = unsafe {
                        [load(row(p, j), mask, p < depth), load(row(p + 1, j), mask, p + 1 < depth)]
                    };
                    // SAFETY: `to` has as many elements.
                    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), interleaved(low, high)) };
                }
            }
        }
    }
}

with_bf16! {
    /// Columns of B that are contiguous: 32 elements of each of 16 columns are rounded and transposed as pairs.
    unsafe fn panels_of_columns(b: Matrix<'_, f32>, panels: &mut [u32]) {
        let n_pairs = n_pairs(&b, panels);
        for (i, panel) in panels.chunks_exact_mut(n_pairs * WIDTH).enumerate() {
            for p in (0..n_pairs).step_by(LANES) {
                let n_here = LANES.min(n_pairs - p);
                for half in 0..2 {
                    // SAFETY: as for this function.
                    let square = unsafe {
                        let columns = b.transposed();
                        transposed_pairs(pairs_of_lines(&columns, i * WIDTH + half * LANES, 2 * p))
                    };
                    let rows = panel[p * WIDTH..].chunks_exact_mut(WIDTH);
                    for (to, row) in rows.zip(square).take(n_here) {
                        let to = &mut to[half * LANES..][..LANES];
                        // SAFETY: `to` has as many elements.
                        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), row) };
                    }
                }
            }
        }
    }
}

with_bf16! {
    /// Columns of A that are contiguous: those of a pair are rounded together and interleaved.
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
                unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), interleaved(low, high)) };
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
                let pairs = unsafe { pairs_of_line(a.row(i), 2 * p) };
                // SAFETY: the mask has the elements of `to` only.
                unsafe { _mm512_mask_storeu_epi32(to.as_mut_ptr().cast(), first_lanes(to.len()), pairs) };
            }
        }
    }
}

with_bf16! {
    /// 32 elements from `at` on of each of 16 rows from `first` on, rounded. What lies outside is zero.
    #[inline]
    unsafe fn pairs_of_lines(rows: &Matrix<'_, f32>, first: usize, at: usize) -> [__m512i; LANES] {
        let mut pairs = [_mm512_setzero_si512(); LANES];
        for (x, pairs) in pairs.iter_mut().enumerate() {
            let line = if first + x < rows.rows() { rows.row(first + x) } else { &[] };
            // SAFETY: as for this function.
            *pairs = unsafe { pairs_of_line(line, at) };
        }
        pairs
    }
}

with_bf16! {
    /// 32 elements of a line from `at` on, rounded. What lies outside is zero.
    #[inline]
    pub(super) unsafe fn pairs_of_line(line: &[f32], at: usize) -> __m512i {
        if let Some(whole) = line.get(at..).and_then(|rest| rest.first_chunk::<{ 2 * LANES }>()) {
            let halves: [__m512; 2] = cast(*whole);
            // SAFETY: vectors of one size.
            return unsafe { transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(halves[1], halves[0])) };
        }
        let half = |at: usize| {
            let mask = first_lanes(line.len().saturating_sub(at));
            // SAFETY: the mask has the elements of the line only.
            unsafe { load(line.as_ptr().wrapping_add(at), mask, true) }
        };
        // SAFETY: vectors of one size.
        unsafe { transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(half(at + LANES), half(at))) }
    }
}

with_bf16! {
    /// The lanes of the mask, or zeros if the line is not `there`. The others are zero.
    #[inline]
    pub(super) unsafe fn load(from: *const f32, mask: u16, there: bool) -> __m512 {
        // SAFETY: the caller guarantees that the elements of the mask can be read if the line is there.
        if there { unsafe { _mm512_maskz_loadu_ps(mask, from) } } else { _mm512_setzero_ps() }
    }
}

with_bf16! {
    /// Pairs of the lanes of `low` and `high`, rounded.
    #[inline]
    pub(super) unsafe fn interleaved(low: __m512, high: __m512) -> __m512i {
        /// The 16 bits of a lane of `low`, then those of `high`.
        const ORDER: [u16; 32] = {
            let mut order = [0; 32];
            let mut lane = 0;
            while lane < 16 {
                order[2 * lane as usize] = lane;
                order[2 * lane as usize + 1] = 16 + lane;
                lane += 1;
            }
            order
        };
        // SAFETY: vectors of one size.
        unsafe {
            let halves = transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(high, low));
            _mm512_permutexvar_epi16(transmute::<[u16; 32], __m512i>(ORDER), halves)
        }
    }
}

with_bf16! {
    /// 16 × 16 pairs, transposed.
    #[inline]
    pub(super) unsafe fn transposed_pairs(square: [__m512i; LANES]) -> [__m512i; LANES] {
        // `map` would not be inlined: its closures have other instruction sets than it.
        // SAFETY: vectors of one size.
        unsafe {
            let square = transmute::<[__m512i; LANES], [__m512; LANES]>(square);
            transmute::<[__m512; LANES], [__m512i; LANES]>(transposed(pulp::x86::V4::detected(), square))
        }
    }
}

/// The mask of the first n lanes, at most all.
#[inline(always)]
pub(super) fn first_lanes(n: usize) -> u16 {
    ((1_u32 << n.min(LANES)) - 1) as u16
}

/// Pairs of a panel of B: those of its depth, and those that it is padded with.
fn n_pairs(b: &Matrix<'_, f32>, panels: &[u32]) -> usize {
    panels.len() / b.columns().next_multiple_of(WIDTH)
}

/// B with any strides, element by element.
pub(super) fn gather_panels(b: Matrix<'_, f32>, panels: &mut [u32]) {
    let n_pairs = n_pairs(&b, panels);
    for (i, panel) in panels.chunks_exact_mut(n_pairs * WIDTH).enumerate() {
        for (p, row) in panel.chunks_exact_mut(WIDTH).enumerate() {
            for (j, to) in row.iter_mut().enumerate() {
                let at = |p| element(&b, p, i * WIDTH + j);
                *to = pair(at(2 * p), at(2 * p + 1));
            }
        }
    }
}

/// A with any strides, element by element.
fn gather_rows(a: Matrix<'_, f32>, strips: &mut [u32]) {
    let n_pairs = a.columns().div_ceil(2);
    for (i, row) in strips.chunks_exact_mut(n_pairs).take(a.rows()).enumerate() {
        for (p, to) in row.iter_mut().enumerate() {
            *to = pair(element(&a, i, 2 * p), element(&a, i, 2 * p + 1));
        }
    }
}

/// Element (i, j), or zero outside.
pub(super) fn element(matrix: &Matrix<'_, f32>, i: usize, j: usize) -> f32 {
    let is_inside = i < matrix.rows() && j < matrix.columns();
    if is_inside { matrix.data()[i * matrix.row_stride() + j * matrix.column_stride()] } else { 0. }
}

pub(super) fn pair(low: f32, high: f32) -> u32 {
    u32::from(rounded(low)) | u32::from(rounded(high)) << 16
}
