//! The definition, in differentiable tensor operations.

use candle_core::{Result, Tensor};

/// See [`matmul`](super::matmul()).
pub fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    a.contiguous()?.matmul(&b.contiguous()?)
}

/// See [`matmul_transposed`](super::matmul_transposed).
pub fn matmul_transposed(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    matmul(a, &b.t()?)
}
