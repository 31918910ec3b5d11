//! The CPU loops around the matrix products. Matrices are contiguous, one after the other. Products are divided among
//! the threads; the loops between them take one thread per matrix, as they are short: O(s l) beside O(s² l).

use super::{COEFFICIENTS, EPSILON};
use crate::backend::buffer::unwritten;
use crate::backend::gemm::{Product, Target, store_all};
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::parallel::{run, squares};
use crate::backend::simd::vector::Lanes;

/// The lower half of a symmetric matrix is computed in blocks of this many columns, from the diagonal down.
const BLOCK: usize = 64;

/// Orthogonalises each of the matrices in `x`, which all have the same `shape` (rows, columns).
pub(in crate::optimizers::muon) fn orthogonalised<T: Lanes>(
    x: Vec<T>,
    shape: (usize, usize),
    n_iterations: usize,
) -> Vec<T> {
    let (s, len) = (shape.0.min(shape.1), shape.0 * shape.1);
    let is_tall = shape.0 > shape.1;
    let mut x = normalised(x, len);
    let n = x.len() / len;
    let mut gram = unwritten(n * s * s);
    let mut polynomial = unwritten(n * s * s);
    let mut y = unwritten(n * len);
    for _ in 0..n_iterations {
        store_symmetric(&mut gram, s, |i| {
            let x = Matrix::new(&x[i * len..(i + 1) * len], shape);
            if is_tall { (x.transposed(), x) } else { (x, x.transposed()) }
        });
        mirror(&mut gram, s);
        store_symmetric(&mut polynomial, s, |i| {
            let gram = Matrix::new(&gram[i * s * s..(i + 1) * s * s], (s, s));
            (gram, gram)
        });
        combine(&mut polynomial, &gram, s);
        apply(&polynomial, &x, &mut y, shape);
        std::mem::swap(&mut x, &mut y);
    }
    x
}

/// N / ‖N‖ of each matrix of `len` elements.
fn normalised<T: Lanes>(mut x: Vec<T>, len: usize) -> Vec<T> {
    run::<T, _, _>(
        x.len(),
        x.chunks_mut(len),
        #[inline(always)]
        |x| {
            let norm = T::from_f64(squares(x).sqrt() + EPSILON);
            for x in x {
                *x /= norm;
            }
        },
    );
    x
}

/// Stores the lower half of symmetric products: matrix i of `c (n, s, s)` becomes the product of the two `factors(i)`,
/// below and on the diagonal. Elements above the diagonal must not be read afterwards.
fn store_symmetric<'a, T: Lanes>(
    c: &mut [T],
    s: usize,
    factors: impl Fn(usize) -> (Matrix<'a, T>, Matrix<'a, T>),
) {
    let mut products = Vec::new();
    for (i, c) in c.chunks_mut(s * s).enumerate() {
        let (a, b) = factors(i);
        let mut rest = MatrixMut::new(c, (s, s));
        for start in (0..s).step_by(BLOCK) {
            let end = s.min(start + BLOCK);
            let (block, right) = rest.split_columns(end - start);
            let depth = 0..a.columns();
            let product =
                Product::new(a.block(start..s, depth.clone()), b.block(depth, start..end));
            products.push((product, Target::from(block)));
            rest = right.split_rows(end - start).1;
        }
    }
    store_all(products);
}

/// Copies the elements below the diagonal of each matrix `(s, s)` to the places above it.
fn mirror<T: Lanes>(matrices: &mut [T], s: usize) {
    run::<T, _, _>(
        matrices.len(),
        matrices.chunks_mut(s * s),
        #[inline(always)]
        |matrix| {
            for i in 0..s {
                for j in 0..i {
                    matrix[j * s + i] = matrix[i * s + j];
                }
            }
        },
    );
}

/// Replaces each matrix of `squares`, the lower half of A², by all of b A + c A².
fn combine<T: Lanes>(squares: &mut [T], grams: &[T], s: usize) {
    let [_, b, c] = COEFFICIENTS.map(T::from_f64);
    run::<T, _, _>(
        squares.len(),
        squares.chunks_mut(s * s).zip(grams.chunks(s * s)),
        #[inline(always)]
        |(square, gram)| {
            for i in 0..s {
                for j in 0..=i {
                    let sum = b * gram[i * s + j] + c * square[i * s + j];
                    square[i * s + j] = sum;
                    square[j * s + i] = sum;
                }
            }
        },
    );
}

/// y = a X + P X of each matrix, or a X + X P if it has more rows than columns.
fn apply<T: Lanes>(polynomials: &[T], x: &[T], y: &mut [T], shape: (usize, usize)) {
    let a = T::from_f64(COEFFICIENTS[0]);
    let (s, len) = (shape.0.min(shape.1), shape.0 * shape.1);
    run::<T, _, _>(
        x.len(),
        y.chunks_mut(len).zip(x.chunks(len)),
        #[inline(always)]
        |(y, x)| {
            for (y, &x) in y.iter_mut().zip(x) {
                *y = a * x;
            }
        },
    );
    let matrices = polynomials.chunks(s * s).zip(x.chunks(len)).zip(y.chunks_mut(len));
    let products = matrices.map(|((p, x), y)| {
        let (p, x) = (Matrix::new(p, (s, s)), Matrix::new(x, shape));
        let product = if shape.0 > shape.1 { Product::new(x, p) } else { Product::new(p, x) };
        (product.accumulated(), Target::from(MatrixMut::new(y, shape)))
    });
    store_all(products.collect());
}
