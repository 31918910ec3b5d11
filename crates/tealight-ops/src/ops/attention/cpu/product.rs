//! A product of small matrices whose sums stay in registers.
//!
//! ```text
//! c[row] += Σ_k a(row, k) · b[k]           b[k] and c[row] are rows of vectors
//! ```
//!
//! Each sum runs over k in order, so the result does not depend on how rows and columns are grouped.

#![expect(clippy::needless_range_loop, reason = "indices below constants are what is unrolled")]

use pulp::bytemuck::{cast_slice, cast_slice_mut};
use pulp::{NullaryFnOnce, Simd};

use crate::backend::gemm::RoundedProducts;
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::simd::vector::{Lanes, lanes};

/// The initial value of the sums.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// Zero: `c` is overwritten.
    Zero,
    /// The value of `c`.
    Sum,
}

/// The left factor. Its single elements are multiplied with vectors of the right factor.
pub(super) trait LeftFactor<T: Lanes>: Copy {
    /// `sums[r][v] += Σ_k a(row + r, k) · b[k][column + v]`, with rows of `width` vectors in `b`.
    fn accumulate<S: Simd, const R: usize, const N: usize>(
        self,
        simd: S,
        sums: [[T::Vector<S>; N]; R],
        row: usize,
        right: RightFactor<'_, T::Vector<S>>,
        column: usize,
    ) -> [[T::Vector<S>; N]; R];

    /// The first `n_rows` rows.
    fn matrix<'a>(self, n_rows: usize) -> Matrix<'a, T>
    where
        Self: 'a;
}

/// The right factor: rows of `width` vectors.
#[derive(Clone, Copy)]
pub(super) struct RightFactor<'a, V> {
    pub(super) rows: &'a [V],
    pub(super) width: usize,
}

/// a(row, k) = data[row · stride + k], for k below `depth`.
#[derive(Clone, Copy)]
pub(super) struct RowMajor<'a, T> {
    pub(super) data: &'a [T],
    pub(super) stride: usize,
    pub(super) depth: usize,
}

/// a(row, k) = data[k · stride + row], for k below `depth`.
#[derive(Clone, Copy)]
pub(super) struct ColumnMajor<'a, T> {
    pub(super) data: &'a [T],
    pub(super) stride: usize,
    pub(super) depth: usize,
}

impl<T: Lanes> LeftFactor<T> for RowMajor<'_, T> {
    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const N: usize>(
        self,
        simd: S,
        mut sums: [[T::Vector<S>; N]; R],
        row: usize,
        right: RightFactor<'_, T::Vector<S>>,
        column: usize,
    ) -> [[T::Vector<S>; N]; R] {
        let mut rows = [&self.data[row * self.stride..][..self.depth]; R];
        for (r, slice) in rows.iter_mut().enumerate() {
            *slice = &self.data[(row + r) * self.stride..][..self.depth];
        }
        for k in 0..self.depth {
            let b = &right.rows[k * right.width + column..][..N];
            for r in 0..R {
                let a = T::splat(simd, rows[r][k]);
                for v in 0..N {
                    sums[r][v] = T::multiply_add(simd, a, b[v], sums[r][v]);
                }
            }
        }
        sums
    }

    fn matrix<'a>(self, n_rows: usize) -> Matrix<'a, T>
    where
        Self: 'a,
    {
        Matrix::strided(self.data, (n_rows, self.depth), (self.stride, 1))
    }
}

impl<T: Lanes> LeftFactor<T> for ColumnMajor<'_, T> {
    #[inline(always)]
    fn accumulate<S: Simd, const R: usize, const N: usize>(
        self,
        simd: S,
        mut sums: [[T::Vector<S>; N]; R],
        row: usize,
        right: RightFactor<'_, T::Vector<S>>,
        column: usize,
    ) -> [[T::Vector<S>; N]; R] {
        for k in 0..self.depth {
            let b = &right.rows[k * right.width + column..][..N];
            let a = &self.data[k * self.stride + row..][..R];
            for r in 0..R {
                let a = T::splat(simd, a[r]);
                for v in 0..N {
                    sums[r][v] = T::multiply_add(simd, a, b[v], sums[r][v]);
                }
            }
        }
        sums
    }

    fn matrix<'a>(self, n_rows: usize) -> Matrix<'a, T>
    where
        Self: 'a,
    {
        Matrix::strided(self.data, (n_rows, self.depth), (1, self.stride))
    }
}

/// The first `n_rows` rows of a product, to be written to `c`.
pub(super) struct Product<'a, S: Simd, T: Lanes, A> {
    pub(super) simd: S,
    pub(super) start: Start,
    /// Rows of `right.width` vectors.
    pub(super) c: &'a mut [T::Vector<S>],
    pub(super) left: A,
    pub(super) right: RightFactor<'a, T::Vector<S>>,
    pub(super) n_rows: usize,
}

impl<S: Simd, T: Lanes, A: LeftFactor<T>> Product<'_, S, T, A> {
    /// Writes the product to `c`. With `rounded`, its operands are rounded to bf16.
    ///
    /// The loops are a separate function for each instruction set. Inlined at every use, they would take minutes to
    /// compile.
    #[inline(always)]
    pub(super) fn write(self, rounded: Option<&RoundedProducts<T>>) {
        match rounded {
            Some(rounded) => self.write_rounded(rounded),
            None => self.simd.vectorize(self),
        }
    }

    #[inline(always)]
    fn write_rounded(self, rounded: &RoundedProducts<T>) {
        let Self { start, c, left, right, n_rows, .. } = self;
        let a = left.matrix(n_rows);
        let width = right.width * lanes::<T, S>();
        let b = Matrix::new(cast_slice(right.rows), (a.columns(), width));
        let c = MatrixMut::new(cast_slice_mut(c), (n_rows, width));
        match start {
            Start::Zero => rounded.store(a, b, c),
            Start::Sum => rounded.add(a, b, c),
        }
    }
}

impl<S: Simd, T: Lanes, A: LeftFactor<T>> NullaryFnOnce for Product<'_, S, T, A> {
    type Output = ();

    #[inline(always)]
    fn call(mut self) {
        let mut column = 0;
        while column + 2 <= self.right.width {
            self.columns::<2>(column);
            column += 2;
        }
        if column < self.right.width {
            self.columns::<1>(column);
        }
    }
}

impl<S: Simd, T: Lanes, A: LeftFactor<T>> Product<'_, S, T, A> {
    /// `N` vectors of every row.
    #[inline(always)]
    fn columns<const N: usize>(&mut self, column: usize) {
        let mut row = 0;
        // Sixteen sums and the factors do not fit into sixteen registers.
        if S::REGISTER_COUNT >= 32 {
            while row + 8 <= self.n_rows {
                self.block::<8, N>(row, column);
                row += 8;
            }
        }
        while row + 4 <= self.n_rows {
            self.block::<4, N>(row, column);
            row += 4;
        }
        if row + 2 <= self.n_rows {
            self.block::<2, N>(row, column);
            row += 2;
        }
        if row < self.n_rows {
            self.block::<1, N>(row, column);
        }
    }

    /// `N` vectors of `R` rows.
    #[inline(always)]
    fn block<const R: usize, const N: usize>(&mut self, row: usize, column: usize) {
        let Self { simd, start, left, right, .. } = *self;
        let mut sums = [[T::splat(simd, T::ZERO); N]; R];
        if start == Start::Sum {
            for r in 0..R {
                let c = &self.c[(row + r) * right.width + column..][..N];
                sums[r].copy_from_slice(c);
            }
        }
        let sums = left.accumulate(simd, sums, row, right, column);
        for r in 0..R {
            self.c[(row + r) * right.width + column..][..N].copy_from_slice(&sums[r]);
        }
    }
}
