//! Transposition: contiguous columns into rows, in square blocks that fit the registers.

use std::ops::Range;

use pulp::Simd;

use crate::backend::simd::vector::Lanes;

/// Columns `stride` apart → rows `width` apart.
pub(super) struct Transpose<'a, T> {
    pub(super) from: &'a [T],
    pub(super) stride: usize,
    pub(super) to: &'a mut [T],
    pub(super) width: usize,
}

impl<T: Lanes> Transpose<'_, T> {
    /// Transposes `columns` columns of `depth` elements.
    #[inline(always)]
    pub(super) fn run<S: Simd>(mut self, columns: usize, depth: usize) {
        let large = self.large_squares::<S>(columns, depth);
        let small = (columns / 4 * 4, depth / 4 * 4);
        self.squares::<4>(0..large.0, large.1..small.1);
        self.squares::<4>(large.0..small.0, 0..small.1);
        self.squares::<1>(0..small.0, small.1..depth);
        self.squares::<1>(small.0..columns, 0..depth);
    }

    /// In blocks of N × N, whose loops the compiler turns into shuffles.
    #[inline(always)]
    fn squares<const N: usize>(&mut self, columns: Range<usize>, depth: Range<usize>) {
        for j in columns.step_by(N) {
            for p in depth.clone().step_by(N) {
                let mut square = [[T::ZERO; N]; N];
                for x in 0..N {
                    let column = &self.from[(j + x) * self.stride + p..][..N];
                    for (row, &y) in square.iter_mut().zip(column) {
                        row[x] = y;
                    }
                }
                for (x, row) in square.iter().enumerate() {
                    self.to[(p + x) * self.width + j..][..N].copy_from_slice(row);
                }
            }
        }
    }

    /// In blocks of 16 × 16, for f32 with AVX-512 only, by explicit shuffles, which are twice as fast as those of
    /// the compiler. Returns the number of columns and the depth that have been transposed.
    #[inline(always)]
    fn large_squares<S: Simd>(&mut self, columns: usize, depth: usize) -> (usize, usize) {
        #[cfg(target_arch = "x86_64")]
        if crate::backend::simd::vector::lanes::<T, S>() == 16
            && let Some(simd) = pulp::x86::V4::try_new()
        {
            use pulp::bytemuck::{cast, cast_slice, cast_slice_mut};
            let (from, to) = (cast_slice::<T, f32>(self.from), cast_slice_mut::<T, f32>(self.to));
            let done = (columns / 16 * 16, depth / 16 * 16);
            for p in (0..done.1).step_by(16) {
                for j in (0..done.0).step_by(16) {
                    let mut square = [cast([0_f32; 16]); 16];
                    for (x, column) in square.iter_mut().enumerate() {
                        let column_start = &from[(j + x) * self.stride + p..];
                        *column = cast(
                            *column_start
                                .first_chunk::<16>()
                                .expect("invariant: 16 elements of a whole block"),
                        );
                    }
                    for (x, row) in avx512::transposed(simd, square).into_iter().enumerate() {
                        let row: [f32; 16] = cast(row);
                        to[(p + x) * self.width + j..][..16].copy_from_slice(&row);
                    }
                }
            }
            return done;
        }
        let _ = (columns, depth);
        (0, 0)
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) mod avx512 {
    use std::arch::x86_64::__m512;

    use pulp::x86::V4;

    /// Transposes 16 × 16 elements in four steps, which interleave single elements, pairs, fours and eights.
    #[inline(always)]
    pub(in crate::backend::gemm) fn transposed(simd: V4, mut rows: [__m512; 16]) -> [__m512; 16] {
        let simd = simd.avx512f;
        let mut other = rows;
        for i in (0..16).step_by(2) {
            other[i] = simd._mm512_unpacklo_ps(rows[i], rows[i + 1]);
            other[i + 1] = simd._mm512_unpackhi_ps(rows[i], rows[i + 1]);
        }
        for i in (0..16).step_by(4) {
            for (x, (a, b)) in [(0, 2), (1, 3)].into_iter().enumerate() {
                let a = simd._mm512_castps_pd(other[i + a]);
                let b = simd._mm512_castps_pd(other[i + b]);
                rows[i + 2 * x] = simd._mm512_castpd_ps(simd._mm512_unpacklo_pd(a, b));
                rows[i + 2 * x + 1] = simd._mm512_castpd_ps(simd._mm512_unpackhi_pd(a, b));
            }
        }
        for i in (0..8).map(|i| i / 4 * 8 + i % 4) {
            other[i] = simd._mm512_shuffle_f32x4::<0x88>(rows[i], rows[i + 4]);
            other[i + 4] = simd._mm512_shuffle_f32x4::<0xdd>(rows[i], rows[i + 4]);
        }
        for i in 0..8 {
            rows[i] = simd._mm512_shuffle_f32x4::<0x88>(other[i], other[i + 8]);
            rows[i + 8] = simd._mm512_shuffle_f32x4::<0xdd>(other[i], other[i + 8]);
        }
        rows
    }
}
