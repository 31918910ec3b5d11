//! The matrix products, with the activation applied to their rows.

use std::marker::PhantomData;
use std::ops::Range;

use candle_core::{D, Result, Tensor};

use crate::backend::buffer::{View, unwritten};
use crate::backend::gemm::{Product, Target, store_all};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::simd::vector::Lanes;
use crate::backend::simd::vectorised;
use crate::ops::activation::{Elementwise, activate, activate_backward};
use crate::ops::dropout::{Dropout, scaled_or_zero};
use crate::ops::linear::cpu::{Weights, add_chunk};
use crate::ops::linear::split;

/// The elements and sizes of the inputs.
pub(super) struct Operands<'a, T> {
    x: View<'a, T>,
    up: Weights<'a, T>,
    down: Weights<'a, T>,
    n_rows: usize,
}

impl<'a, T: Lanes> Operands<'a, T> {
    /// `inputs`: x, W₁, b₁ if there is one, W₂, b₂ if there is one.
    pub(super) fn from_tensors(inputs: &'a [Tensor], have_bias: [bool; 2]) -> Result<Self> {
        let (x, maps) = split(inputs, &have_bias);
        let (up, down) = (Weights::from_map(maps[0])?, Weights::from_map(maps[1])?);
        Ok(Self { x: View::from_tensor(x)?, up, down, n_rows: x.elem_count() / x.dim(D::Minus1)? })
    }

    fn x(&self) -> Matrix<'_, T> {
        Matrix::new(&self.x, (self.n_rows, self.up.n_inputs))
    }

    /// `(rows, inner)`
    fn inner(&self) -> (usize, usize) {
        (self.n_rows, self.up.n_outputs)
    }

    /// The rows of a chunk, about 2²¹ elements of u: the results of a chunk are still in the cache when they are read.
    fn chunks(&self) -> impl Iterator<Item = Range<usize>> {
        const ELEMENTS: usize = 1 << 21;
        let (n_rows, inner) = self.inner();
        let n_chunks = (n_rows * inner).div_ceil(ELEMENTS);
        let per_chunk = n_rows.div_ceil(n_chunks);
        (0..n_rows).step_by(per_chunk).map(move |first| first..(first + per_chunk).min(n_rows))
    }

    /// u = x W₁ᵀ + b₁ of a chunk.
    fn up<'b>(&'b self, rows: &Range<usize>) -> Product<'b, T> {
        self.up.product(self.x().block(rows.clone(), 0..self.up.n_inputs))
    }

    /// Writes h W₂ᵀ + b₂ of a chunk to its rows of y.
    fn store_output(&self, rows: &Range<usize>, h: &[T], y: &mut [T]) {
        let shape = (rows.len(), self.down.n_outputs);
        let product = self.down.product(Matrix::new(h, (rows.len(), self.up.n_outputs)));
        let y = &mut y[rows.start * shape.1..rows.end * shape.1];
        store_all(vec![(product, MatrixMut::new(y, shape).into())]);
    }
}

/// The first `len` elements of memory that is allocated for the first chunk, which is the longest.
fn first<T: Lanes>(memory: &mut Vec<T>, len: usize) -> &mut [T] {
    if memory.is_empty() {
        *memory = unwritten(len);
    }
    &mut memory[..len]
}

/// The activation, and the dropout after it.
pub(super) struct Layer<T, A> {
    dropout: Option<Dropout<T>>,
    activation: PhantomData<A>,
}

impl<T: Lanes, A: Elementwise> Layer<T, A> {
    pub(super) fn new(dropout: Option<Dropout<T>>) -> Self {
        Self { dropout, activation: PhantomData }
    }

    /// y alone.
    pub(super) fn value(&self, operands: &Operands<'_, T>) -> Vec<T> {
        let (n_rows, inner) = operands.inner();
        let mut y = unwritten(n_rows * operands.down.n_outputs);
        let mut h = Vec::new();
        for rows in operands.chunks() {
            let activate = |(row, column): (usize, usize), h: &mut [T], _: &mut [T]| {
                self.activate((rows.start + row) * inner + column, h);
            };
            let h = first(&mut h, rows.len() * inner);
            let product = operands.up(&rows).then(&activate);
            store_all(vec![(product, MatrixMut::new(h, (rows.len(), inner)).into())]);
            operands.store_output(&rows, h, &mut y);
        }
        y
    }

    /// y and u.
    pub(super) fn forward(&self, operands: &Operands<'_, T>) -> (Vec<T>, Vec<T>) {
        let (n_rows, inner) = operands.inner();
        let mut u = unwritten(n_rows * inner);
        let mut y = unwritten(n_rows * operands.down.n_outputs);
        let mut h = Vec::new();
        for rows in operands.chunks() {
            let activate = |(row, column): (usize, usize), u: &mut [T], h: &mut [T]| {
                h.copy_from_slice(u);
                self.activate((rows.start + row) * inner + column, h);
            };
            let u = &mut u[rows.start * inner..rows.end * inner];
            let h = first(&mut h, rows.len() * inner);
            let [c, beside] = [u, &mut *h].map(|x| MatrixMut::new(x, (rows.len(), inner)));
            let product = operands.up(&rows).then(&activate);
            store_all(vec![(product, Target::beside(c, beside))]);
            operands.store_output(&rows, h, &mut y);
        }
        (y, u)
    }

    /// The gradients of the inputs of [`Operands::from_tensors`], where they are needed. `u` is the `u` that [`Self::forward`]
    /// returns.
    pub(super) fn backward(
        &self,
        operands: &Operands<'_, T>,
        mut u: Vec<T>,
        gradient: &Tensor,
        inputs: &[Tensor],
    ) -> Result<Vec<Option<Vec<T>>>> {
        let Operands { up, down, .. } = operands;
        let gradient = View::from_tensor(gradient)?;
        let g = Matrix::new(&gradient, (operands.n_rows, down.n_outputs));
        let result = |input: &Tensor| input.track_op().then(|| unwritten(input.elem_count()));
        let mut results: Vec<_> = inputs.iter().map(result).collect();
        let mut du = Vec::new();
        for rows in operands.chunks() {
            let g = g.block(rows.clone(), 0..down.n_outputs);
            let x = operands.x().block(rows.clone(), 0..up.n_inputs);
            let shape = (rows.len(), up.n_outputs);
            let du = first(&mut du, shape.0 * shape.1);
            let u = &mut u[rows.start * shape.1..rows.end * shape.1];
            self.store_inner_gradient(&rows, Product::new(g, down.matrix()), du, u);
            let [du, h] = [&*du, &*u].map(|x| Matrix::new(x, shape));
            let of_x = (Product::new(du, up.matrix()), (rows.len(), up.n_inputs));
            let of_parameters = up.gradients(du, x).chain(down.gradients(g, h));
            add_chunk(&mut results, rows.start, of_x, of_parameters);
        }
        Ok(results)
    }

    /// Writes du of a chunk, computed from `dh`, the gradient of h, and overwrites u with h.
    fn store_inner_gradient(
        &self,
        rows: &Range<usize>,
        dh: Product<'_, T>,
        du: &mut [T],
        u: &mut [T],
    ) {
        let inner = du.len() / rows.len();
        let through = |(row, column): (usize, usize), du: &mut [T], u: &mut [T]| {
            activate_backward::<T, A>(du, u);
            self.drop_some((rows.start + row) * inner + column, [du, u]);
        };
        let [c, beside] = [du, u].map(|x| MatrixMut::new(x, (rows.len(), inner)));
        store_all(vec![(dh.then(&through), Target::beside(c, beside))]);
    }

    /// Overwrites u with h, for the elements from number `first` on.
    fn activate(&self, first: usize, u: &mut [T]) {
        activate::<T, A>(u);
        self.drop_some(first, [u]);
    }

    /// Drops the same elements of each of `rows`. Their first element has number `first`.
    fn drop_some<const N: usize>(&self, first: usize, rows: [&mut [T]; N]) {
        let (Some(dropout), Some(len)) = (&self.dropout, rows.first().map(|row| row.len())) else {
            return;
        };
        vectorised::<T, _, _>(
            rows,
            #[inline(always)]
            |mut rows| {
                dropout.factors(
                    first as u64,
                    len,
                    #[inline(always)]
                    |at, factors| {
                        for row in &mut rows {
                            for (x, &factor) in row[at..].iter_mut().zip(factors) {
                                *x = scaled_or_zero(*x, factor);
                            }
                        }
                    },
                );
            },
        );
    }
}
