//! The matrix products, with the activation applied to their rows.

use std::marker::PhantomData;

use candle_core::{D, Result, Tensor};

use crate::backend::buffer::{View, unwritten};
use crate::backend::gemm::{Product, Target, store_all};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::simd::vector::Lanes;
use crate::backend::simd::vectorised;
use crate::ops::activation::{Elementwise, activate, activate_backward};
use crate::ops::dropout::{Dropout, scaled_or_zero};
use crate::ops::linear::cpu::{Weights, computed};
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
    pub(super) fn of(inputs: &'a [Tensor], have_bias: [bool; 2]) -> Result<Self> {
        let (x, maps) = split(inputs, &have_bias);
        let (up, down) = (Weights::of(maps[0])?, Weights::of(maps[1])?);
        Ok(Self { x: View::of(x)?, up, down, n_rows: x.elem_count() / x.dim(D::Minus1)? })
    }

    fn x(&self) -> Matrix<'_, T> {
        Matrix::new(&self.x, (self.n_rows, self.up.n_inputs))
    }

    /// `(rows, inner)`
    fn inner(&self) -> (usize, usize) {
        (self.n_rows, self.up.n_outputs)
    }

    /// h W₂ᵀ + b₂
    fn output(&self, h: &[T]) -> Vec<T> {
        let shape = (self.n_rows, self.down.n_outputs);
        let mut y = unwritten(shape.0 * shape.1);
        let product = self.down.product(Matrix::new(h, self.inner()));
        store_all(vec![(product, MatrixMut::new(&mut y, shape).into())]);
        y
    }
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
        let mut h = unwritten(n_rows * inner);
        let activate = |(row, column): (usize, usize), h: &mut [T], _: &mut [T]| {
            self.activate(row * inner + column, h);
        };
        let product = operands.up.product(operands.x()).then(&activate);
        store_all(vec![(product, MatrixMut::new(&mut h, (n_rows, inner)).into())]);
        operands.output(&h)
    }

    /// y and u.
    pub(super) fn forward(&self, operands: &Operands<'_, T>) -> (Vec<T>, Vec<T>) {
        let (n_rows, inner) = operands.inner();
        let [mut u, mut h] = [0; 2].map(|_| unwritten(n_rows * inner));
        let activate = |(row, column): (usize, usize), u: &mut [T], h: &mut [T]| {
            h.copy_from_slice(u);
            self.activate(row * inner + column, h);
        };
        let product = operands.up.product(operands.x()).then(&activate);
        let [c, beside] = [&mut u, &mut h].map(|x| MatrixMut::new(x, (n_rows, inner)));
        store_all(vec![(product, Target::beside(c, beside))]);
        (operands.output(&h), u)
    }

    /// The gradients of the inputs of [`Operands::of`], where they are needed. `u` is that of
    /// [`Self::forward`].
    pub(super) fn backward(
        &self,
        operands: &Operands<'_, T>,
        mut u: Vec<T>,
        gradient: &Tensor,
        is_needed: impl Iterator<Item = bool>,
    ) -> Result<Vec<Option<Vec<T>>>> {
        let Operands { up, down, n_rows, .. } = operands;
        let (n_rows, inner) = (*n_rows, up.n_outputs);
        let gradient = View::of(gradient)?;
        let g = Matrix::new(&gradient, (n_rows, down.n_outputs));

        let mut du = unwritten(n_rows * inner);
        let through = |(row, column): (usize, usize), du: &mut [T], u: &mut [T]| {
            activate_backward::<T, A>(du, u);
            self.drop_some(row * inner + column, [du, u]);
        };
        let product = Product::of(g, down.matrix()).then(&through);
        let [c, beside] = [&mut du, &mut u].map(|x| MatrixMut::new(x, (n_rows, inner)));
        store_all(vec![(product, Target::beside(c, beside))]);
        let h = Matrix::new(&u, (n_rows, inner));
        let of_u = Matrix::new(&du, (n_rows, inner));

        let of_x = (Product::of(of_u, up.matrix()), (n_rows, up.n_inputs));
        let all = std::iter::once(of_x)
            .chain(up.gradients(of_u, operands.x()))
            .chain(down.gradients(g, h));
        Ok(computed(all.map(Some).zip(is_needed)))
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
        vectorised(
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
