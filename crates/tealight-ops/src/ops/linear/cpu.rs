//! The matrix products.

use candle_core::{D, Result, Tensor};

use super::Map;
use crate::backend::buffer::{View, unwritten};
use crate::backend::gemm::{Factors, Product, store_all};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::simd::vector::Lanes;

/// The elements of the weight and the bias of a map.
pub(crate) struct Weights<'a, T> {
    weight: View<'a, T>,
    bias: Option<View<'a, T>>,
    pub(crate) n_outputs: usize,
    pub(crate) n_inputs: usize,
}

impl<'a, T: Lanes> Weights<'a, T> {
    pub(crate) fn from_map(Map { weight, bias }: Map<'a>) -> Result<Self> {
        let (n_outputs, n_inputs) = weight.dims2()?;
        let bias = bias.map(View::from_tensor).transpose()?;
        Ok(Self { weight: View::from_tensor(weight)?, bias, n_outputs, n_inputs })
    }

    /// W `(out, in)`
    pub(crate) fn matrix(&self) -> Matrix<'_, T> {
        Matrix::new(&self.weight, (self.n_outputs, self.n_inputs))
    }

    /// x Wᵀ + b
    pub(crate) fn product<'b>(&'b self, x: Matrix<'b, T>) -> Product<'b, T> {
        let product = Product::new(x, self.matrix().transposed());
        match &self.bias {
            Some(bias) => product.plus_row(bias),
            None => product,
        }
    }

    /// gᵀ x and, if there is a bias, Σ g, each with its shape.
    pub(crate) fn gradients<'b>(
        &self,
        g: Matrix<'b, T>,
        x: Matrix<'b, T>,
    ) -> impl Iterator<Item = Gradient<'b, T>> + use<'a, 'b, T> {
        let of_weight = (Product::new(g.transposed(), x), (self.n_outputs, self.n_inputs));
        let of_bias = (Product::sum_of_rows(g), (1, self.n_outputs));
        [Some(of_weight), self.bias.is_some().then_some(of_bias)].into_iter().flatten()
    }
}

/// How a gradient is computed, and its shape.
pub(crate) type Gradient<'a, T> = (Product<'a, T>, (usize, usize));

/// Computes the needed ones among `gradients`, in one list of products.
pub(crate) fn computed<'a, T: Lanes>(
    gradients: impl Iterator<Item = (Option<Gradient<'a, T>>, bool)>,
) -> Vec<Option<Vec<T>>> {
    let gradients: Vec<_> =
        gradients.map(|(gradient, is_needed)| gradient.filter(|_| is_needed)).collect();
    let mut results: Vec<_> = gradients
        .iter()
        .map(|gradient| gradient.as_ref().map(|(_, (m, n))| unwritten(m * n)))
        .collect();
    let products = gradients.into_iter().zip(&mut results).filter_map(|(gradient, result)| {
        let (product, shape) = gradient?;
        Some((product, MatrixMut::new(result.as_mut()?, shape).into()))
    });
    store_all(products.collect());
    results
}

/// Computes the needed gradients of a chunk of rows that begins at row `first`: the gradients of its rows of x, and the
/// terms that it adds to the gradients of the parameters. `results` are the gradients of x and of the parameters, in
/// this order.
pub(crate) fn add_chunk<'a, T: Lanes>(
    results: &mut [Option<Vec<T>>],
    first: usize,
    (of_x, (n_rows, width)): Gradient<'a, T>,
    of_parameters: impl Iterator<Item = Gradient<'a, T>>,
) {
    let (dx, parameters) = results.split_at_mut(1);
    let mut products = Vec::with_capacity(1 + parameters.len());
    if let Some(dx) = &mut dx[0] {
        let dx = &mut dx[first * width..][..n_rows * width];
        products.push((of_x, MatrixMut::new(dx, (n_rows, width)).into()));
    }
    for (gradient, (product, shape)) in parameters.iter_mut().zip(of_parameters) {
        if let Some(gradient) = gradient {
            let product = if first == 0 { product } else { product.accumulated() };
            products.push((product, MatrixMut::new(gradient, shape).into()));
        }
    }
    store_all(products);
}

/// `(rows, in)` of `x (.., in)`.
fn rows<'a, T: Lanes>(x: &'a View<'_, T>, width: usize) -> Matrix<'a, T> {
    Matrix::new(x, (x.len() / width, width))
}

/// x Wᵀ + b of each of `maps`, for `x (.., in)`.
pub(super) fn forward<T: Lanes>(x: &Tensor, maps: &[Map<'_>]) -> Result<Vec<Vec<T>>> {
    let width = x.dim(D::Minus1)?;
    let x = View::from_tensor(x)?;
    let x = rows(&x, width);
    let maps = maps.iter().map(|&map| Weights::from_map(map)).collect::<Result<Vec<_>>>()?;
    let mut results: Vec<_> = maps.iter().map(|map| unwritten(x.rows() * map.n_outputs)).collect();
    let products = maps.iter().zip(&mut results).map(|(map, y)| {
        let y = MatrixMut::new(y, (x.rows(), map.n_outputs));
        (map.product(x), y.into())
    });
    store_all(products.collect());
    Ok(results)
}

/// The gradients of x and of each weight and bias, in this order, where they are needed. `gradients` are the gradients
/// of the results; if a result has none, the weight and the bias of its map have none, either.
pub(super) fn backward<T: Lanes>(
    x: &Tensor,
    maps: &[Map<'_>],
    gradients: &[Option<Tensor>],
    is_needed: impl Iterator<Item = bool>,
) -> Result<Vec<Option<Vec<T>>>> {
    let width = x.dim(D::Minus1)?;
    let x = View::from_tensor(x)?;
    let x = rows(&x, width);
    let maps = maps.iter().map(|&map| Weights::from_map(map)).collect::<Result<Vec<_>>>()?;
    let views =
        gradients.iter().map(|gradient| gradient.as_ref().map(View::from_tensor).transpose());
    let views = views.collect::<Result<Vec<Option<View<'_, T>>>>>()?;
    let g = |i: usize| views[i].as_ref().map(|view| rows(view, maps[i].n_outputs));

    let factors: Vec<Factors<'_, T>> =
        (0..maps.len()).filter_map(|i| Some((g(i)?, maps[i].matrix()))).collect();
    let of_x = (!factors.is_empty()).then(|| (Product::sum(&factors), (x.rows(), width)));
    let mut all = vec![of_x];
    for (i, map) in maps.iter().enumerate() {
        match g(i) {
            Some(g) => all.extend(map.gradients(g, x).map(Some)),
            None => all.extend((0..=usize::from(map.bias.is_some())).map(|_| None)),
        }
    }
    Ok(computed(all.into_iter().zip(is_needed)))
}
