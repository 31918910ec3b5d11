//! The definitions, in plain tensor operations.

use candle_core::{Result, Tensor};

use super::normalisation::{Normalisation, identity};
use super::segments::Segments;

/// `x (batch, n_heads, len, head_dim)` → `(batch, n_heads, n_landmarks, head_dim)`
pub fn segment_means(x: &Tensor, segments: &Segments) -> Result<Tensor> {
    segments.matrix(x.dtype(), x.device())?.broadcast_matmul(&x.contiguous()?)
}

/// `a (.., m, m)` → `(.., m, m)`
pub fn pseudo_inverse(a: &Tensor, n_iterations: usize, start: Normalisation) -> Result<Tensor> {
    let identity = identity(a)?;
    let less = |c: f64, x: &Tensor| x.neg()?.broadcast_add(&(&identity * c)?);
    let mut z = start.in_operations(a)?.z;
    for _ in 0..n_iterations {
        let x = a.contiguous()?.matmul(&z)?;
        let polynomial = less(15., &x.matmul(&less(7., &x)?)?)?;
        let polynomial = less(13., &x.matmul(&polynomial)?)?;
        z = (z.matmul(&polynomial)? * 0.25)?;
    }
    Ok(z)
}
