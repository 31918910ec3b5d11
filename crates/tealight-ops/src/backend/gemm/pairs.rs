//! Packs f32 as pairs of bf16. A pair is a `u32`: its lower half holds the bf16 of an element of A or B at one depth, its
//! upper half that at the next depth.
//!
//! Rounding is to nearest, ties to even; denormal numbers become zero (VCVTNE2PS2BF16). An element is packed as one
//! bf16, or split into three parts whose sum is the element: each part is the bf16 nearest to the element minus the
//! parts before it. Three times 8 significant bits hold the 24 of an f32. Bits of an element below the smallest normal
//! number (1.2e-38) are lost. The parts of an infinite element, and of one above 3.39e38, which bf16 rounds to
//! infinity, are infinite and not a number.

#![expect(unsafe_code, reason = "instructions that pulp does not have, and masked loads")]

use std::arch::x86_64::{
    __m256i, __m512, __m512bh, __m512i, _mm512_castsi512_ps, _mm512_castsi512_si256,
    _mm512_cvtepu16_epi32, _mm512_cvtne2ps_pbh, _mm512_extracti64x4_epi64, _mm512_maskz_loadu_ps,
    _mm512_permutexvar_epi16, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_slli_epi32,
    _mm512_sub_ps,
};
use std::mem::transmute;

use pulp::bytemuck::cast;

use super::transpose::avx512::transposed;
use crate::backend::matrix::Matrix;
use crate::backend::simd::Detected;
use crate::backend::simd::bf16::parts;

/// Elements of a vector.
pub(super) const LANES: usize = 16;

/// A function compiled with these instructions and the instructions of pulp's V4.
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

with_bf16! {
    /// The parts of 32 elements of a line from `at` on. Elements outside of the line are zero.
    #[inline]
    pub(super) unsafe fn pairs_of_line<const PARTS: usize>(line: &[f32], at: usize) -> [__m512i; PARTS] {
        if let Some(whole) = line.get(at..).and_then(|rest| rest.first_chunk::<{ 2 * LANES }>()) {
            let [first, second]: [__m512; 2] = cast(*whole);
            // SAFETY: as for this function.
            return unsafe { split(first, second) };
        }
        let half = |at: usize| {
            let mask = first_lanes(line.len().saturating_sub(at));
            // SAFETY: the mask has the elements of the line only.
            unsafe { load(line.as_ptr().wrapping_add(at), mask, true) }
        };
        // SAFETY: as for this function.
        unsafe { split(half(at), half(at + LANES)) }
    }
}

with_bf16! {
    /// The parts of the elements x of both vectors: part i is bf16(x − earlier parts). Parts of `first` are in the
    /// lower half.
    #[inline]
    pub(super) unsafe fn split<const PARTS: usize>(mut first: __m512, mut second: __m512) -> [__m512i; PARTS] {
        let mut parts = [_mm512_setzero_si512(); PARTS];
        for (i, part) in parts.iter_mut().enumerate() {
            // SAFETY: vectors of one size.
            *part = unsafe { transmute::<__m512bh, __m512i>(_mm512_cvtne2ps_pbh(second, first)) };
            if i + 1 < PARTS {
                // SAFETY: as for this function.
                unsafe {
                    first = _mm512_sub_ps(first, widened(_mm512_castsi512_si256(*part)));
                    second = _mm512_sub_ps(second, widened(_mm512_extracti64x4_epi64::<1>(*part)));
                }
            }
        }
        parts
    }
}

with_bf16! {
    /// 16 bf16 as f32.
    #[inline]
    unsafe fn widened(halves: __m256i) -> __m512 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(halves)))
    }
}

with_bf16! {
    /// The lanes of the mask, or zeros if the line is not `there`. Lanes outside of the mask are zero.
    #[inline]
    pub(super) unsafe fn load(from: *const f32, mask: u16, there: bool) -> __m512 {
        // SAFETY: the caller guarantees that the elements of the mask can be read if the line is there.
        if there { unsafe { _mm512_maskz_loadu_ps(mask, from) } } else { _mm512_setzero_ps() }
    }
}

with_bf16! {
    /// Pairs of an element of the lower half and one of the upper half.
    #[inline]
    pub(super) unsafe fn interleaved(halves: __m512i) -> __m512i {
        /// An element of the lower half, then one of the upper half.
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

/// The pairs of the parts of two elements.
pub(super) fn pairs<const PARTS: usize>(low: f32, high: f32) -> [u32; PARTS] {
    let (low, high) = (parts::<PARTS>(low), parts::<PARTS>(high));
    std::array::from_fn(|part| u32::from(low[part]) | u32::from(high[part]) << 16)
}

/// Element (i, j), or zero outside.
pub(super) fn element(matrix: &Matrix<'_, f32>, i: usize, j: usize) -> f32 {
    let is_inside = i < matrix.rows() && j < matrix.columns();
    if is_inside { matrix.data()[i * matrix.row_stride() + j * matrix.column_stride()] } else { 0. }
}
