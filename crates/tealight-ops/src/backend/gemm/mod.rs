//! Matrix products.
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
//! The sizes are those of AVX-512. There are two differences from BLIS. The micro-kernel broadcasts the elements
//! of A with any strides, so that A is packed only if its columns are contiguous and far apart. And a strip of A,
//! not a panel of B, stays in the first-level cache. Both suit small transformers, where A has thousands of rows
//! and B few columns. Products of up to 8 rows with contiguous columns are computed by `dots` instead.
//!
//! Where [`with_product_precision`](crate::with_product_precision) asks for bf16, large products of f32 are computed by
//! `bf16` or `amx`, which round A and B while they pack them. Where the processor has AMX, large products are computed by
//! it in f32 as well: `amx` then splits each element of A and B into parts of bf16. All other loops are the same.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg(target_arch = "x86_64")]
mod bf16;
mod block;
mod dots;
mod kernel;
mod kernels;
mod pack;
#[cfg(target_arch = "x86_64")]
mod pairs;
#[cfg(target_arch = "x86_64")]
mod panels;
mod share;
mod strip;
#[cfg(test)]
mod tests;
mod transpose;

use std::ops::Range;

use kernel::Kernel;
use kernels::{Conversion, Kernels};
use pulp::bytemuck::cast_slice_mut;

use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::simd::Level;
use crate::backend::simd::bf16::{Bf16, rounded, widened};
use crate::backend::simd::vector::Lanes;
use crate::backend::simd::vectorised;

/// base + scale · (A B + ..), for [`store_all`].
///
/// ```text
/// store_all(vec![(Product::new(x, weight.transposed()).plus_row(bias), y.into())])
/// ```
#[derive(Clone, Copy)]
pub(crate) struct Product<'a, T> {
    a: Matrix<'a, T>,
    b: Matrix<'a, T>,
    /// A', B' and so on, of the whole product even if this is a block of it.
    others: &'a [Factors<'a, T>],
    scale: T,
    base: Base<'a, T>,
    finish: Option<&'a Finish<'a, T>>,
    method: Method,
    /// The (row, column) of the whole product at which this block begins.
    origin: (usize, usize),
}

/// A and B.
pub(crate) type Factors<'a, T> = (Matrix<'a, T>, Matrix<'a, T>);

/// The addend of the product. C is read only if it is `Itself`.
#[derive(Clone, Copy, Debug)]
enum Base<'a, T> {
    Zero,
    Itself,
    Row(&'a [T]),
}

/// The algorithm. It is chosen for the whole product, and its blocks use the same one.
#[derive(Clone, Copy, Debug)]
enum Method {
    Strips,
    /// As `Strips`, with operands converted to bf16, see [`Conversion`].
    ConvertedStrips,
    Dots,
    /// The sum of B's rows: A counts as a row of ones and is not read.
    Rows,
}

/// An epilogue: called with each completed part of a row of C while it is still in the cache. Arguments: the
/// (row, column) where the part begins, the part, and the same part of [`Target::beside`]'s second matrix, which is
/// empty if there is no second matrix. An epilogue must not compute matrix products: they would run on one thread and
/// evict the block from the cache.
pub(crate) type Finish<'a, T> = dyn Fn((usize, usize), &mut [T], &mut [T]) + Sync + 'a;

/// C, and optionally a second matrix of the same shape for the epilogue.
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
    /// C with a second matrix.
    ///
    /// # Panics
    /// If the shapes differ.
    pub(crate) fn beside(c: MatrixMut<'a, T>, beside: MatrixMut<'a, T>) -> Self {
        let shape = |matrix: &MatrixMut<'_, T>| (matrix.rows(), matrix.columns());
        assert_eq!(shape(&c), shape(&beside), "the shapes of C and of the second matrix");
        Self { c, beside: Some(beside) }
    }

    fn reborrow(&mut self) -> Target<'_, T> {
        Target { c: self.c.reborrow(), beside: self.beside.as_mut().map(MatrixMut::reborrow) }
    }

    /// Splits both matrices by `split`.
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
    /// If the number of A's columns differs from the number of B's rows.
    pub(crate) fn new(a: Matrix<'a, T>, b: Matrix<'a, T>) -> Self {
        assert_eq!(a.columns(), b.rows(), "the columns of A and the rows of B");
        let method = if dots::suit(&a, &b) { Method::Dots } else { Method::Strips };
        let (base, origin) = (Base::Zero, (0, 0));
        Self { a, b, others: &[], scale: T::ONE, base, finish: None, method, origin }
    }

    /// The sum of the rows of B, to which only [`accumulated`](Self::accumulated) may be applied.
    ///
    /// # Panics
    /// If B has no elements.
    pub(crate) fn sum_of_rows(b: Matrix<'a, T>) -> Self {
        let ones = Matrix::strided(b.data(), (1, b.rows()), (0, 0));
        Self { method: Method::Rows, ..Self::new(ones, b) }
    }

    /// The sum of the products of all `factors`.
    ///
    /// # Panics
    /// If there are none, or if their shapes do not match.
    pub(crate) fn sum(factors: &'a [Factors<'a, T>]) -> Self {
        let (&(a, b), others) = factors.split_first().expect("factors of a product");
        for (other, another) in others {
            assert_eq!((other.rows(), another.columns()), (a.rows(), b.columns()), "the products");
            assert_eq!(other.columns(), another.rows(), "the columns of A and the rows of B");
        }
        Self { others, ..Self::new(a, b) }
    }

    /// Adds `row` to each row of the product.
    ///
    /// # Panics
    /// If `row` has another length than the rows.
    #[must_use]
    pub(crate) fn plus_row(self, row: &'a [T]) -> Self {
        assert_eq!(row.len(), self.b.columns(), "the elements of the row and the columns of B");
        Self { base: Base::Row(row), ..self }
    }

    /// Runs the epilogue `finish` on every part of a row.
    #[must_use]
    pub(crate) fn then(self, finish: &'a Finish<'a, T>) -> Self {
        Self { finish: Some(finish), ..self }
    }

    /// Multiplies the product by `scale`.
    #[cfg(test)]
    fn scaled(self, scale: T) -> Self {
        Self { scale, ..self }
    }

    /// Adds the product to C.
    #[must_use]
    pub(crate) fn accumulated(self) -> Self {
        Self { base: Base::Itself, ..self }
    }

    /// With operands converted to bf16, in f32 only.
    fn converted(self) -> Self {
        Self { method: Method::ConvertedStrips, ..self }
    }

    /// With operands converted to bf16, where there is a kernel for it and it is faster. This is a function of the shape,
    /// so that equal products take equal paths.
    fn converted_if_faster(self, kernels: &Kernels<T>) -> Self {
        let is_faster = |kernel: &Kernel<T>| self.gains_from_conversion(kernel.fewest);
        if kernels.converting.as_ref().is_some_and(is_faster) { self.converted() } else { self }
    }

    fn is_converted(&self) -> bool {
        matches!(self.method, Method::ConvertedStrips)
    }

    /// Whether a kernel that converts saves more time than converting the operands costs. A is packed once for all
    /// columns of C, and B once for all rows; therefore C needs at least `fewest` of both.
    fn gains_from_conversion(&self, fewest: usize) -> bool {
        /// The least depth.
        const SHALLOWEST: usize = 32;
        let (rows, columns, depth) = (self.a.rows(), self.b.columns(), self.a.columns());
        matches!(self.method, Method::Strips) && rows.min(columns) >= fewest && depth >= SHALLOWEST
    }

    /// A block of the product.
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

/// Products of small matrices of f32, on the thread of the caller, with operands rounded to bf16.
pub(crate) struct RoundedProducts<T: 'static>(Kernels<T>);

impl<T: Lanes> RoundedProducts<T> {
    /// There are none for f64.
    pub(crate) fn with(instructions: Bf16) -> Option<Self> {
        let kernels = Kernels::new(Level::current(), Some(Conversion::Rounded(instructions)));
        kernels.converting.is_some().then_some(Self(kernels))
    }

    /// Rounds each of `x`, as packing does.
    pub(crate) fn round(x: &mut [T]) {
        vectorised::<T, _, _>(
            x,
            #[inline(always)]
            |x| {
                for x in cast_slice_mut::<T, f32>(x) {
                    *x = widened(rounded(*x));
                }
            },
        );
    }

    /// C = A B
    pub(crate) fn store(&self, a: Matrix<'_, T>, b: Matrix<'_, T>, c: MatrixMut<'_, T>) {
        Product::new(a, b).converted().run(&self.0, &mut c.into());
    }

    /// C += A B
    pub(crate) fn add(&self, a: Matrix<'_, T>, b: Matrix<'_, T>, c: MatrixMut<'_, T>) {
        Product::new(a, b).converted().accumulated().run(&self.0, &mut c.into());
    }
}

/// Products on the thread of the caller, for loops whose blocks the threads share.
pub(crate) struct SerialProducts<T: 'static>(Kernels<T>);

impl<T: Lanes> SerialProducts<T> {
    /// In the precision that this thread asks for: other threads do not know it.
    pub(crate) fn current() -> Self {
        Self(Kernels::current())
    }

    /// In the precision of the operands, whatever this thread asks for.
    pub(crate) fn exact() -> Self {
        Self(Kernels::new(Level::current(), None))
    }

    /// Computes a product.
    ///
    /// # Panics
    /// If the target has another shape than the product.
    pub(crate) fn store(&self, product: Product<'_, T>, c: MatrixMut<'_, T>) {
        let (rows, columns) = (product.a.rows(), product.b.columns());
        assert_eq!((rows, columns), (c.rows(), c.columns()), "the shape of the product and of C");
        product.converted_if_faster(&self.0).run(&self.0, &mut c.into());
    }
}

/// Computes every product and stores it in its target, on several threads if there is enough work.
///
/// # Panics
/// If a target has another shape than its product.
pub(crate) fn store_all<T: Lanes>(mut products: Vec<(Product<'_, T>, Target<'_, T>)>) {
    let kernels = Kernels::current();
    for (product, target) in &mut products {
        let (rows, columns) = (product.a.rows(), product.b.columns());
        let stored = (target.c.rows(), target.c.columns());
        assert_eq!((rows, columns), stored, "the shape of the product and of where it is stored");
        *product = product.converted_if_faster(&kernels);
    }
    share::run_all(&kernels, products);
}
