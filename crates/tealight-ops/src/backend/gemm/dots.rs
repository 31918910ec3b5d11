//! Products of a few rows with contiguous columns, as when a text is generated token by token (B is the transposed
//! weight of a layer): dot products, which read B once and do not pack it.
//!
//! ```text
//! c_ij = base_ij + scale · Σ_p a_ip b_pj
//! ```

use pulp::bytemuck::cast_slice;
use pulp::{Simd, WithSimd};

use super::{Base, Product};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::simd::vector::{Lanes, lanes};

/// With more rows, packing B is faster than reading it from the first-level cache for every row.
const MOST_ROWS: usize = 8;

/// Whether [`Dots`] supports these operands and is the faster method.
pub(super) fn suit<T>(a: &Matrix<'_, T>, b: &Matrix<'_, T>) -> bool {
    let contiguous = a.column_stride() == 1 && b.row_stride() == 1;
    contiguous && a.rows() <= MOST_ROWS && a.columns() > 0
}

/// A product and its target.
pub(super) struct Dots<'a, 'b, 'c, T> {
    pub(super) product: &'a Product<'b, T>,
    pub(super) c: &'a mut MatrixMut<'c, T>,
}

impl<T: Lanes> WithSimd for Dots<'_, '_, '_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        /// Columns at a time, which share the loads of a row.
        const TOGETHER: usize = 4;
        let columns = self.c.columns();
        let whole = columns / TOGETHER * TOGETHER;
        for j in (0..whole).step_by(TOGETHER) {
            self.columns::<S, TOGETHER>(simd, j);
        }
        for j in whole..columns {
            self.columns::<S, 1>(simd, j);
        }
    }
}

impl<T: Lanes> Dots<'_, '_, '_, T> {
    /// Every row times `COLUMNS` columns from j on.
    #[inline(always)]
    fn columns<S: Simd, const COLUMNS: usize>(&mut self, simd: S, j: usize) {
        let Product { a, b, scale, base, .. } = self.product;
        let depth = a.columns();
        for i in 0..a.rows() {
            let row = &a.data()[i * a.row_stride()..][..depth];
            let columns = std::array::from_fn(
                #[inline(always)]
                |x| &b.data()[(j + x) * b.column_stride()..][..depth],
            );
            let sums = dots::<S, T, COLUMNS>(simd, row, columns);
            let c = &mut self.c.row(i)[j..][..COLUMNS];
            for (x, (c, sum)) in c.iter_mut().zip(sums).enumerate() {
                let base = match base {
                    Base::Zero => T::ZERO,
                    Base::Itself => *c,
                    Base::Row(row) => row[j + x],
                };
                *c = *scale * sum + base;
            }
        }
    }
}

/// Dot products of one row with several columns.
#[inline(always)]
fn dots<S: Simd, T: Lanes, const COLUMNS: usize>(
    simd: S,
    row: &[T],
    columns: [&[T]; COLUMNS],
) -> [T; COLUMNS] {
    let whole = row.len() / lanes::<T, S>() * lanes::<T, S>();
    let mut sums = [T::splat(simd, T::ZERO); COLUMNS];
    for (p, &x) in cast_slice::<T, T::Vector<S>>(&row[..whole]).iter().enumerate() {
        for (sum, column) in sums.iter_mut().zip(columns) {
            let y = cast_slice::<T, T::Vector<S>>(&column[..whole])[p];
            *sum = T::multiply_add(simd, x, y, *sum);
        }
    }
    let mut totals = [T::ZERO; COLUMNS];
    for (total, (sum, column)) in totals.iter_mut().zip(sums.iter().zip(columns)) {
        *total = T::sum(simd, *sum);
        for (&x, &y) in row[whole..].iter().zip(&column[whole..]) {
            *total += x * y;
        }
    }
    totals
}
