//! Products of two computed matrices, as in attention: scores, and weighted means of values.
//!
//! ```text
//! C = A B         dA = G Bᵀ,   dB = Aᵀ G
//! C = A Bᵀ        dA = G B,    dB = Gᵀ A
//! ```
//!
//! In half precision the products are Candle's, and their results stay in it, as in [`linear`](crate::ops::linear).
//!
//! Cost: for each matrix of the batch one product forward and two backward. Threads share all of them.

mod cuda;
pub mod reference;

use candle_core::{D, Result, Tensor, bail};

use crate::autograd::graph::{Saved, record_saving};
use crate::backend::buffer::{View, stored, tensor, unwritten};
use crate::backend::choice::dispatch;
use crate::backend::gemm::{Product, store_all};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::profile::{Phase, timed};
use crate::backend::simd::vector::Lanes;

const NAME: &str = "matmul";

/// `a (.., m, k)`, `b (.., k, n)` → `(.., m, n)`
///
/// # Errors
/// If the shapes do not match.
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    apply(a, b, Orientation::AsItIs)
}

/// `a (.., m, k)`, `b (.., n, k)` → A Bᵀ `(.., m, n)`
///
/// # Errors
/// If the shapes do not match.
pub fn matmul_transposed(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    apply(a, b, Orientation::Transposed)
}

/// Whether the right factor is transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Orientation {
    AsItIs,
    Transposed,
}

fn apply(a: &Tensor, b: &Tensor, right: Orientation) -> Result<Tensor> {
    let sizes = Sizes::from_operands(a, b, right)?;
    dispatch!(match [a, b] {
        Cpu(T) => on_cpu::<T>(a, b, sizes),
        Cuda => cuda::matmul(a, b, sizes),
        Reference => match right {
            Orientation::AsItIs => reference::matmul(a, b),
            Orientation::Transposed => reference::matmul_transposed(a, b),
        },
    })
}

/// The sizes of one product of the batch: C `(m, n)`, with sums over k terms.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    m: usize,
    n: usize,
    k: usize,
    right: Orientation,
}

impl Sizes {
    fn from_operands(a: &Tensor, b: &Tensor, right: Orientation) -> Result<Self> {
        let mismatch = || {
            let of = |x: &Tensor| (x.shape().clone(), x.dtype());
            let expected = match right {
                Orientation::AsItIs => "(.., m, k), (.., k, n)",
                Orientation::Transposed => "(.., m, k), (.., n, k)",
            };
            let (a, b) = (of(a), of(b));
            format!("the product of {a:?} and {b:?}: expected {expected} of the same dtype")
        };
        if a.rank() != b.rank() || a.rank() < 2 || a.dtype() != b.dtype() {
            bail!("{}", mismatch())
        }
        let (m, k) = (a.dim(D::Minus2)?, a.dim(D::Minus1)?);
        let (rows, columns) = (b.dim(D::Minus2)?, b.dim(D::Minus1)?);
        let (depth, n) = match right {
            Orientation::AsItIs => (rows, columns),
            Orientation::Transposed => (columns, rows),
        };
        let batches = [a, b].map(|x| x.dims()[..x.rank() - 2].to_vec());
        if depth != k || batches[0] != batches[1] {
            bail!("{}", mismatch())
        }
        Ok(Self { m, n, k, right })
    }

    /// Each right factor as `(k, n)`.
    fn b<'a, T: Lanes>(&self, b: &'a [T]) -> impl Iterator<Item = Matrix<'a, T>> {
        let Self { n, k, right, .. } = *self;
        let is_transposed = right == Orientation::Transposed;
        let stored = if is_transposed { (n, k) } else { (k, n) };
        matrices(b, stored).map(move |b| if is_transposed { b.transposed() } else { b })
    }
}

/// The matrices of a batch.
fn matrices<T: Lanes>(x: &[T], shape: (usize, usize)) -> impl Iterator<Item = Matrix<'_, T>> {
    x.chunks_exact(shape.0 * shape.1).map(move |x| Matrix::new(x, shape))
}

fn on_cpu<T: Lanes>(a: &Tensor, b: &Tensor, sizes: Sizes) -> Result<Tensor> {
    let (a, b) = (a.contiguous()?, b.contiguous()?);
    let Sizes { m, n, k, right } = sizes;
    let c = timed(NAME, Phase::Forward, || {
        let (a, b) = (View::<T>::from_tensor(&a)?, View::<T>::from_tensor(&b)?);
        Result::Ok(products(matrices(&a, (m, k)).zip(sizes.b(&b)), (m, n)))
    })?;
    let mut shape = a.dims()[..a.rank() - 2].to_vec();
    shape.extend([m, n]);
    record_saving(NAME, &[&a, &b], stored(c, shape), Saved::Inputs, move |inputs, _, gradient| {
        let (a, b) = (&inputs[0], &inputs[1]);
        let g = View::<T>::from_tensor(gradient)?;
        let da = || {
            let view = View::from_tensor(b)?;
            let pairs = matrices(&g, (m, n)).zip(sizes.b(&view).map(Matrix::transposed));
            tensor(products(pairs, (m, k)), a.shape())
        };
        let db = || {
            let view = View::from_tensor(a)?;
            let pairs = matrices(&view, (m, k)).zip(matrices(&g, (m, n)));
            let db = match right {
                Orientation::AsItIs => products(pairs.map(|(a, g)| (a.transposed(), g)), (k, n)),
                Orientation::Transposed => {
                    products(pairs.map(|(a, g)| (g.transposed(), a)), (n, k))
                }
            };
            tensor(db, b.shape())
        };
        Ok(vec![a.track_op().then(da).transpose()?, b.track_op().then(db).transpose()?])
    })
}

/// The products of pairs of matrices, stored one after the other.
fn products<'a, T: Lanes>(
    pairs: impl Iterator<Item = (Matrix<'a, T>, Matrix<'a, T>)>,
    (m, n): (usize, usize),
) -> Vec<T> {
    let products: Vec<_> = pairs.map(|(a, b)| Product::new(a, b)).collect();
    let mut c = unwritten(products.len() * m * n);
    let places = c.chunks_exact_mut(m * n).map(|c| MatrixMut::new(c, (m, n)).into());
    store_all(products.into_iter().zip(places).collect());
    c
}
