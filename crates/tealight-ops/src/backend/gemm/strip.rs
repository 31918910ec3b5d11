//! The micro-kernel: a strip of a few rows of C, tile by tile.
//!
//! ```text
//! C (ROWS, columns) = base + scale · A (ROWS, depth) B (depth, columns)
//! ```
//!
//! A tile is ROWS by two vectors, as many as the registers hold. Its sums are accumulated from outer products: for
//! every p, each element of A's column p is broadcast and multiplied by B's row p. The strip of A stays in the
//! first-level cache for all tiles; B is read from the second-level cache.

#![expect(unsafe_code, reason = "bounds are checked once per block, not per multiply-add")]

use std::marker::PhantomData;

use pulp::{Simd, WithSimd};

use crate::backend::simd::Detected;
use crate::backend::simd::vector::{Lanes, lanes};

/// The operands of a strip.
pub(super) struct Strip<T> {
    pub(super) depth: usize,
    pub(super) columns: usize,
    pub(super) a: Strided<T>,
    pub(super) b: Panels<T>,
    /// Rows of A that are read after this strip, in place.
    pub(super) next: NextRows<T>,
    /// The addend of the product.
    pub(super) base: Strided<T>,
    /// The first element of C, and the stride of its rows.
    pub(super) c: (*mut T, usize),
    pub(super) scale: T,
}

/// Element (i, j) is at `first + i · row_stride + j · column_stride`.
#[derive(Clone, Copy)]
pub(super) struct Strided<T> {
    pub(super) first: *const T,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

/// Contiguous rows that are prefetched: the first element, the distance between rows, and how many elements to advance
/// for each `depth_unit` of this strip. The addresses may be invalid.
#[derive(Clone, Copy)]
pub(super) struct NextRows<T> {
    pub(super) first: *const T,
    pub(super) row_stride: usize,
    pub(super) step: usize,
}

impl<T> NextRows<T> {
    /// The rows that tile number `tile` of `n_tiles` prefetches, if the next strip has `n_rows`. Each tile takes two;
    /// if that is too few, the remaining rows are not prefetched.
    #[inline(always)]
    pub(super) fn rows(&self, tile: usize, n_tiles: usize, n_rows: usize) -> [*const T; 2] {
        let row = |i: usize| self.first.wrapping_add(i * self.row_stride);
        if n_tiles >= n_rows {
            let i = tile.min(n_rows - 1);
            [row(i), row(i)]
        } else {
            let i = (2 * tile).min(n_rows - 1);
            [row(i), row((i + 1).min(n_rows - 1))]
        }
    }
}

/// Columns in panels as wide as a tile: element (p, j) is at
/// `first + ⌊j / width⌋ · panel_stride + p · row_stride + j mod width`.
#[derive(Clone, Copy)]
pub(super) struct Panels<T> {
    pub(super) first: *const T,
    pub(super) panel_stride: usize,
    pub(super) row_stride: usize,
}

/// The strips of a block of A, in place or packed: the first, and the distance in elements from one to the next.
pub(super) struct Strips<T> {
    pub(super) first: Strided<T>,
    pub(super) stride: usize,
}

/// The terms that an element of A and an element of B add to a sum.
pub(super) trait Terms<T: Lanes> {
    fn add<S: Simd>(simd: S, a: T::Vector<S>, b: T::Vector<S>, sum: T::Vector<S>) -> T::Vector<S>;
}

/// Their product.
pub(super) struct OneProduct;

impl<T: Lanes> Terms<T> for OneProduct {
    #[inline(always)]
    fn add<S: Simd>(simd: S, a: T::Vector<S>, b: T::Vector<S>, sum: T::Vector<S>) -> T::Vector<S> {
        T::multiply_add(simd, a, b, sum)
    }
}

/// Multiplies a strip of `ROWS` rows.
///
/// # Safety
/// A, B and the base can be read, and C written, in all rows and columns. If the base's columns have stride 0, a
/// tile's width of elements can be read from its first on.
pub(super) unsafe fn run<S: Detected, T: Lanes, const ROWS: usize>(strip: &Strip<T>) {
    // SAFETY: as for this function.
    Simd::vectorize(S::detected(), unsafe { Rows::<T, OneProduct, ROWS>::from_strip(strip) });
}

/// A strip with its number of rows and the terms of its sums as types.
pub(super) struct Rows<'a, T, P, const ROWS: usize>(&'a Strip<T>, PhantomData<P>);

impl<'a, T: Lanes, P: Terms<T>, const ROWS: usize> Rows<'a, T, P, ROWS> {
    /// # Safety
    /// As for [`run`].
    #[inline(always)]
    pub(super) unsafe fn from_strip(strip: &'a Strip<T>) -> Self {
        Self(strip, PhantomData)
    }
}

impl<T: Lanes, P: Terms<T>, const ROWS: usize> WithSimd for Rows<'_, T, P, ROWS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let columns = self.0.columns;
        let width = 2 * lanes::<T, S>();
        let whole = columns / width * width;
        for j in (0..whole).step_by(width) {
            self.tile::<S, 2>(simd, j, None);
        }
        for j in (whole..columns).step_by(lanes::<T, S>()) {
            self.tile::<S, 1>(simd, j, Some(T::first(simd, columns - j)));
        }
    }
}

impl<T: Lanes, P: Terms<T>, const ROWS: usize> Rows<'_, T, P, ROWS> {
    /// The tile of `VECTORS` vectors from column j on, restricted to the lanes of the mask, if any.
    #[inline(always)]
    fn tile<S: Simd, const VECTORS: usize>(&self, simd: S, j: usize, mask: Option<T::Mask<S>>) {
        let Strip { base, c: (c, c_row_stride), scale, .. } = self.0;
        let sums = self.sums::<S, VECTORS>(simd, j, mask);
        let scale = T::splat(simd, *scale);
        let mut base_row = base.first.wrapping_add(j * base.column_stride);
        let mut c_row = c.wrapping_add(j);
        for sums in sums {
            for (v, sum) in sums.into_iter().enumerate() {
                let offset = v * lanes::<T, S>();
                // SAFETY: the caller of `of` guarantees that the base can be read in these columns.
                let base = unsafe { load(simd, mask, base_row.wrapping_add(offset)) };
                let sum = T::multiply_add(simd, sum, scale, base);
                // SAFETY: the caller of `of` guarantees that C can be written in these columns.
                unsafe { store(simd, mask, c_row.wrapping_add(offset), sum) };
            }
            base_row = base_row.wrapping_add(base.row_stride);
            c_row = c_row.wrapping_add(*c_row_stride);
        }
    }

    /// A B, for a tile.
    #[inline(always)]
    fn sums<S: Simd, const VECTORS: usize>(
        &self,
        simd: S,
        j: usize,
        mask: Option<T::Mask<S>>,
    ) -> [[T::Vector<S>; VECTORS]; ROWS] {
        /// The number of rows by which prefetching of B is ahead: about the latency of the second-level cache.
        const AHEAD: usize = 8;
        let Strip { depth, a, b, next, .. } = self.0;
        let width = 2 * lanes::<T, S>();
        let mut next_rows = next.rows(j / width, self.0.columns.div_ceil(width), ROWS);
        let mut sums = [[T::splat(simd, T::ZERO); VECTORS]; ROWS];
        let mut a_column = a.first;
        let mut b_row = b.first.wrapping_add(j / width * b.panel_stride + j % width);
        for _ in 0..*depth {
            let mut row = [T::splat(simd, T::ZERO); VECTORS];
            for (v, row) in row.iter_mut().enumerate() {
                let vector = b_row.wrapping_add(v * lanes::<T, S>());
                // SAFETY: the caller of `of` guarantees that B can be read in these columns.
                *row = unsafe { load(simd, mask, vector) };
                prefetch(vector.wrapping_add(AHEAD * b.row_stride));
            }
            for (i, sums) in sums.iter_mut().enumerate() {
                // SAFETY: the caller of `of` guarantees that A can be read in these rows.
                let x = T::splat(simd, unsafe { *a_column.wrapping_add(i * a.row_stride) });
                for (sum, &y) in sums.iter_mut().zip(&row) {
                    *sum = P::add(simd, x, y, *sum);
                }
            }
            for row in &mut next_rows {
                prefetch_to_second_level(*row);
                *row = row.wrapping_add(next.step);
            }
            a_column = a_column.wrapping_add(a.column_stride);
            b_row = b_row.wrapping_add(b.row_stride);
        }
        sums
    }
}

/// Loads a vector, or the lanes of the mask.
///
/// # Safety
/// These elements can be read.
#[inline(always)]
unsafe fn load<S: Simd, T: Lanes>(
    simd: S,
    mask: Option<T::Mask<S>>,
    from: *const T,
) -> T::Vector<S> {
    match mask {
        // SAFETY: the caller guarantees that these elements can be read.
        None => unsafe { from.cast::<T::Vector<S>>().read_unaligned() },
        // SAFETY: as above.
        Some(mask) => unsafe { T::load(simd, mask, from) },
    }
}

/// Stores a vector, or the lanes of the mask.
///
/// # Safety
/// These elements can be written.
#[inline(always)]
unsafe fn store<S: Simd, T: Lanes>(simd: S, mask: Option<T::Mask<S>>, to: *mut T, x: T::Vector<S>) {
    match mask {
        // SAFETY: the caller guarantees that these elements can be written.
        None => unsafe { to.cast::<T::Vector<S>>().write_unaligned(x) },
        // SAFETY: as above.
        Some(mask) => unsafe { T::store(simd, mask, to, x) },
    }
}

/// Prefetches a cache line into the second-level cache. The address may be invalid.
#[inline(always)]
fn prefetch_to_second_level<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction, and it accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

/// Prefetches a cache line. The address may be invalid.
#[inline(always)]
pub(super) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has the instruction, and it accepts any address.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
