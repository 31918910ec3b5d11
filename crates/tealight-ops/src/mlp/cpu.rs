//! The products, and what is done to their rows.

use std::marker::PhantomData;

use candle_core::{D, Result, Tensor};

use crate::activation::Elementwise;
use crate::buffer::{View, unwritten};
use crate::dropout::Dropout;
use crate::lanes::Lanes;
use crate::matrix::{Matrix, MatrixMut};
use crate::parallel::sum_of_columns;
use crate::product::{Product, Target, store_all};
use crate::simd::vectorised;

/// The elements of the inputs, and their sizes.
pub(super) struct Operands<'a, T> {
    x: View<'a, T>,
    up: Linear<'a, T>,
    down: Linear<'a, T>,
    n_rows: usize,
}

struct Linear<'a, T> {
    weight: View<'a, T>,
    bias: Option<View<'a, T>>,
    n_outputs: usize,
    n_inputs: usize,
}

impl<'a, T: Lanes> Operands<'a, T> {
    /// `inputs`: x, W₁, perhaps b₁, W₂, perhaps b₂.
    pub(super) fn of(inputs: &'a [Tensor], biased: [bool; 2]) -> Result<Self> {
        let mut rest = inputs[1..].iter();
        let mut next = || rest.next().expect("invariant: the inputs are those of the forward");
        let mut linear = |biased: bool| {
            let weight = next();
            let (n_outputs, n_inputs) = weight.dims2()?;
            let bias = biased.then(|| View::of(next())).transpose()?;
            Result::Ok(Linear { weight: View::of(weight)?, bias, n_outputs, n_inputs })
        };
        let [up, down] = biased.map(&mut linear);
        let n_rows = inputs[0].elem_count() / inputs[0].dim(D::Minus1)?;
        Ok(Self { x: View::of(&inputs[0])?, up: up?, down: down?, n_rows })
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

impl<T: Lanes> Linear<'_, T> {
    /// `(out, in)`
    fn weight(&self) -> Matrix<'_, T> {
        Matrix::new(&self.weight, (self.n_outputs, self.n_inputs))
    }

    /// x Wᵀ + b
    fn product<'a>(&'a self, x: Matrix<'a, T>) -> Product<'a, T> {
        let product = Product::of(x, self.weight().transposed());
        match &self.bias {
            Some(bias) => product.plus_row(bias),
            None => product,
        }
    }
}

/// An activation, and what it drops.
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
            vectorised(
                h,
                #[inline(always)]
                |h| {
                    for h in h.iter_mut() {
                        *h = A::value(*h);
                    }
                    self.drop_some(row * inner + column, h);
                },
            );
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
            vectorised(
                (u, h),
                #[inline(always)]
                |(u, h)| {
                    for (h, &u) in h.iter_mut().zip(u.iter()) {
                        *h = A::value(u);
                    }
                    self.drop_some(row * inner + column, h);
                },
            );
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
        is_needed: &[bool],
    ) -> Result<Vec<Option<Vec<T>>>> {
        let Operands { up, down, n_rows, .. } = operands;
        let (n_rows, inner) = (*n_rows, up.n_outputs);
        let gradient = View::of(gradient)?;
        let g = Matrix::new(&gradient, (n_rows, down.n_outputs));

        let mut du = unwritten(n_rows * inner);
        let through = |(row, column): (usize, usize), du: &mut [T], u: &mut [T]| {
            vectorised(
                (du, u),
                #[inline(always)]
                |(du, u)| {
                    for (du, u) in du.iter_mut().zip(u.iter_mut()) {
                        (*du, *u) = (*du * A::derivative(*u), A::value(*u));
                    }
                    let first = row * inner + column;
                    self.drop_some(first, du);
                    self.drop_some(first, u);
                },
            );
        };
        let product = Product::of(g, down.weight()).then(&through);
        let [c, beside] = [&mut du, &mut u].map(|x| MatrixMut::new(x, (n_rows, inner)));
        store_all(vec![(product, Target::beside(c, beside))]);
        let h = Matrix::new(&u, (n_rows, inner));
        let of_u = Matrix::new(&du, (n_rows, inner));

        let mut is_needed = is_needed.iter().copied();
        let mut next = || is_needed.next().unwrap_or(false);
        let mut results = Vec::with_capacity(5);
        results.push((next(), Product::of(of_u, up.weight()), (n_rows, up.n_inputs)));
        let of_up = (next(), Product::of(of_u.transposed(), operands.x()), (inner, up.n_inputs));
        results.push(of_up);
        let bias_up = up.bias.as_ref().map(|_| next());
        results.push((next(), Product::of(g.transposed(), h), (down.n_outputs, inner)));
        let bias_down = down.bias.as_ref().map(|_| next());

        let mut buffers: Vec<_> = results
            .iter()
            .map(|&(is_needed, _, (m, n))| is_needed.then(|| unwritten(m * n)))
            .collect();
        let products =
            results.into_iter().zip(&mut buffers).filter_map(|((_, product, shape), c)| {
                Some((product, MatrixMut::new(c.as_mut()?, shape).into()))
            });
        store_all(products.collect());
        let mut buffers = buffers.into_iter();
        let sums = |is_needed: bool, g: &[T], n| is_needed.then(|| sum_of_columns(g, n));
        let mut gradients: Vec<_> = buffers.by_ref().take(2).collect();
        gradients.extend(bias_up.map(|is_needed| sums(is_needed, &du, inner)));
        gradients.extend(buffers);
        gradients.extend(bias_down.map(|is_needed| sums(is_needed, &gradient, down.n_outputs)));
        Ok(gradients)
    }

    /// Of elements of h, from number `first` on.
    #[inline(always)]
    fn drop_some(&self, first: usize, h: &mut [T]) {
        if let Some(dropout) = &self.dropout {
            dropout.factors(
                first as u64,
                h.len(),
                #[inline(always)]
                |at, factors| {
                    for (h, &factor) in h[at..].iter_mut().zip(factors) {
                        *h = if factor == T::ZERO { T::ZERO } else { *h * factor };
                    }
                },
            );
        }
    }
}
