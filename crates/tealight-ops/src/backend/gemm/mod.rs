//! The matrix product.
//!
//! ```text
//! C (m, n) = base + scale · (A (m, k) B (k, n) + A' (m, k') B' (k', n) + ..)
//! ```
//!
//! The algorithm is that of Goto & van de Geijn 2008
//! (<https://doi.org/10.1145/1356052.1356053>) in the layers of BLIS (Van Zee & van de Geijn 2015,
//! <https://doi.org/10.1145/2764454>), with the tile of C stretched along its rows:
//!
//! ```text
//! share   for every block of C, one task
//! block     for every NC columns of it
//!             for every KC of the depth          B (KC, NC) is packed: second-level cache
//!               for every few strips of rows     A (98, KC) is packed, or read in place
//!                 for every strip                A (14, KC): first-level cache
//! strip             for every tile of columns
//!                     for every p of the depth   C (14, 32) += A (14, 1) B (1, 32): registers
//! ```
//!
//! The sizes are those of AVX-512. Two things are unlike BLIS. The micro-kernel broadcasts the
//! elements of A from wherever they are, so that A is packed only if its columns are contiguous
//! and far apart; and the strip of A, rather than a panel of B, is what stays in the first-level
//! cache. Both suit the products of a small transformer, of which A has thousands of rows and B
//! few columns. Up to 8 rows times contiguous columns are `dots`.

mod block;
mod dots;
mod kernel;
mod pack;
mod share;
mod strip;
#[cfg(test)]
mod tests;
mod transpose;

use std::fmt::{self, Debug};
use std::ops::Range;

use kernel::Kernel;

use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::simd::Level;
use crate::backend::simd::vector::Lanes;

/// base + scale · (A B + ..), to be stored.
///
/// ```text
/// store_all(vec![(Product::of(x, weight.transposed()).plus_row(bias), y.into())])
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Product<'a, T> {
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    /// Further factors, of the whole product.
    others: &'a [Factors<'a, T>],
    scale: T,
    base: Base<'a, T>,
    finish: Option<&'a Finish<'a, T>>,
    method: Method,
    /// Of the whole product, the element that is this one's first.
    origin: (usize, usize),
}

/// A and B.
pub(crate) type Factors<'a, T> = (Matrix<'a, T>, Matrix<'a, T>);

/// What the product is added to. Unless it is C itself, C is never read.
#[derive(Clone, Copy, Debug)]
enum Base<'a, T> {
    Zero,
    Itself,
    Row(&'a [T]),
}

/// How the sums are formed: that of the whole product holds for its blocks too.
#[derive(Clone, Copy, Debug)]
enum Method {
    Strips,
    Dots,
    /// A stands for a row of ones, and is not read.
    Rows,
}

/// Is given part of a row of C, with the (row, column) where it begins, once it is complete and
/// still in the cache; and the same part of what lies beside C, empty if nothing does. It must not
/// multiply matrices.
pub(crate) type Finish<'a, T> = dyn Fn((usize, usize), &mut [T], &mut [T]) + Sync + 'a;

/// C, and perhaps another matrix of its shape beside it.
#[derive(Debug)]
pub(crate) struct Target<'a, T> {
    c: MatrixMut<'a, T>,
    beside: Option<MatrixMut<'a, T>>,
}

impl<'a, T> From<MatrixMut<'a, T>> for Target<'a, T> {
    fn from(c: MatrixMut<'a, T>) -> Self {
        Self { c, beside: None }
    }
}

impl<'a, T> Target<'a, T> {
    /// # Panics
    /// If the shapes differ.
    pub(crate) fn beside(c: MatrixMut<'a, T>, beside: MatrixMut<'a, T>) -> Self {
        let shape = |matrix: &MatrixMut<'_, T>| (matrix.rows(), matrix.columns());
        assert_eq!(shape(&c), shape(&beside), "the shapes of C and of what lies beside it");
        Self { c, beside: Some(beside) }
    }

    fn reborrow(&mut self) -> Target<'_, T> {
        Target { c: self.c.reborrow(), beside: self.beside.as_mut().map(MatrixMut::reborrow) }
    }

    /// Cut into two, both alike.
    fn split(
        self,
        split: impl Fn(MatrixMut<'a, T>) -> (MatrixMut<'a, T>, MatrixMut<'a, T>),
    ) -> (Self, Self) {
        let (c, others) = split(self.c);
        let (beside, others_beside) = self.beside.map(split).unzip();
        (Self { c, beside }, Self { c: others, beside: others_beside })
    }
}

impl<'a, T: Lanes> Product<'a, T> {
    /// A B
    ///
    /// # Panics
    /// If A has not as many columns as B has rows.
    pub(crate) fn of(a: Matrix<'a, T>, b: Matrix<'a, T>) -> Self {
        assert_eq!(a.columns(), b.rows(), "the columns of A and the rows of B");
        let method = if dots::suit(&a, &b) { Method::Dots } else { Method::Strips };
        let (base, origin) = (Base::Zero, (0, 0));
        Self { a, b, others: &[], scale: T::ONE, base, finish: None, method, origin }
    }

    /// The sum of the rows of B, on its own or accumulated, and nothing else.
    ///
    /// # Panics
    /// If B has no elements.
    pub(crate) fn sum_of_rows(b: Matrix<'a, T>) -> Self {
        let ones = Matrix::strided(b.data(), (1, b.rows()), (0, 0));
        Self { method: Method::Rows, ..Self::of(ones, b) }
    }

    /// The sum of the products of all `factors`, of which there is one at least.
    ///
    /// # Panics
    /// If there is none, or if their shapes do not match.
    pub(crate) fn sum(factors: &'a [Factors<'a, T>]) -> Self {
        let (&(a, b), others) = factors.split_first().expect("factors of a product");
        for (other, another) in others {
            assert_eq!((other.rows(), another.columns()), (a.rows(), b.columns()), "the products");
            assert_eq!(other.columns(), another.rows(), "the columns of A and the rows of B");
        }
        Self { others, ..Self::of(a, b) }
    }

    /// Added to `row`, one element per column.
    ///
    /// # Panics
    /// If it has another length.
    #[must_use]
    pub(crate) fn plus_row(self, row: &'a [T]) -> Self {
        assert_eq!(row.len(), self.b.columns(), "the elements of the row and the columns of B");
        Self { base: Base::Row(row), ..self }
    }

    /// Each part of a row is changed by `finish` at the end.
    #[must_use]
    pub(crate) fn then(self, finish: &'a Finish<'a, T>) -> Self {
        Self { finish: Some(finish), ..self }
    }

    /// Times `scale`.
    #[cfg(test)]
    fn scaled(self, scale: T) -> Self {
        Self { scale, ..self }
    }

    /// Added to what is there.
    #[must_use]
    pub(crate) fn accumulated(self) -> Self {
        Self { base: Base::Itself, ..self }
    }

    fn check(&self, c: &MatrixMut<'_, T>) {
        let (product, stored) = ((self.a.rows(), self.b.columns()), (c.rows(), c.columns()));
        assert_eq!(product, stored, "the shape of the product and of where it is stored");
    }

    /// Part of the product.
    fn block(&self, rows: Range<usize>, columns: Range<usize>) -> Self {
        let depth = 0..self.a.columns();
        Self {
            a: self.a.block(rows.clone(), depth.clone()),
            b: self.b.block(depth, columns.clone()),
            base: match self.base {
                Base::Row(row) => Base::Row(&row[columns.clone()]),
                base => base,
            },
            origin: (self.origin.0 + rows.start, self.origin.1 + columns.start),
            ..*self
        }
    }
}

/// Every C = its product, on several threads if there is work for them.
///
/// # Panics
/// If a C has another shape than its product.
pub(crate) fn store_all<T: Lanes>(products: Vec<(Product<'_, T>, Target<'_, T>)>) {
    for (product, target) in &products {
        product.check(&target.c);
    }
    share::run_all(&Kernel::new(Level::current()), products);
}

impl<T> Debug for Product<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Product").finish_non_exhaustive()
    }
}
