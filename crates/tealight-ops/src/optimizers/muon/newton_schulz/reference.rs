//! The definition, in tensor operations.

use candle_core::{DType, Result, Tensor};

use super::{COEFFICIENTS, EPSILON};
use crate::backend::product_precision::{ProductPrecision, with_product_precision};
use crate::ops::matmul::{matmul, matmul_transposed};
use crate::ops::swap_axes::swap_axes;

/// See [`orthogonalised`](super::orthogonalised). Products are in f32 or f64, whatever precision the caller asks for by
/// [`with_product_precision`].
pub(super) fn orthogonalised(x: &Tensor, n_iterations: usize) -> Result<Tensor> {
    let (_n, rows, columns) = x.dims3()?;
    // With rows ≤ columns, A = X Xᵀ has the shorter side.
    if rows > columns {
        transposed(&of_wide(&transposed(x)?, n_iterations)?)
    } else {
        of_wide(&x.contiguous()?, n_iterations)
    }
}

/// Orthogonalises matrices `(n, s, l)` with s ≤ l.
fn of_wide(x: &Tensor, n_iterations: usize) -> Result<Tensor> {
    let [a, b, c] = COEFFICIENTS;
    let squares = x.to_dtype(DType::F64)?.sqr()?.flatten_from(1)?.sum_keepdim(1)?; // (n, 1)
    let norm = (squares.sqrt()? + EPSILON)?.to_dtype(x.dtype())?.unsqueeze(1)?;
    let mut x = x.broadcast_div(&norm)?;
    with_product_precision(ProductPrecision::F32, || {
        for _ in 0..n_iterations {
            let gram = matmul_transposed(&x, &x)?; // A
            let polynomial = ((&gram * b)? + (matmul(&gram, &gram)? * c)?)?;
            x = ((&x * a)? + matmul(&polynomial, &x)?)?;
        }
        Ok(x)
    })
}

/// `(n, rows, columns)` → `(n, columns, rows)`, contiguous
fn transposed(x: &Tensor) -> Result<Tensor> {
    swap_axes(&x.contiguous()?.unsqueeze(3)?)?.squeeze(3)
}
