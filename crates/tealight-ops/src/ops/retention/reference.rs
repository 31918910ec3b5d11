//! The definition, in plain tensor operations: the parallel form, eq. (5).

use candle_core::{Device, Result, Tensor};

use crate::ops::padding_mask;

/// `query` and `key (batch, n_heads, len, n_features)`, `value (batch, n_heads, len, width)`,
/// `decay (n_heads)` → `(batch, n_heads, len, width)`
pub fn retention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    decay: &[f64],
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let value = padding_mask::zeroed(value, key_padding_mask)?;
    weights(query, key, decay, key_padding_mask)?.matmul(&value.contiguous()?)
}

/// Q Kᵀ ⊙ D: `query` and `key (batch, n_heads, len, n_features)`, `decay (n_heads)` →
/// `(batch, n_heads, len, len)`
pub fn weights(
    query: &Tensor,
    key: &Tensor,
    decay: &[f64],
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (batch, _n_heads, len, _n_features) = key.dims4()?;
    let key = padding_mask::zeroed(key, key_padding_mask)?;
    let scores = query.contiguous()?.matmul(&key.t()?.contiguous()?)?;
    let decays = decays(decay, len, query.device())?.to_dtype(query.dtype())?;
    let weights = scores.broadcast_mul(&decays)?; // (batch, n_heads, len, len)
    match key_padding_mask {
        None => Ok(weights),
        Some(mask) => {
            let mask = mask.reshape((batch, 1, 1, len))?.broadcast_as(weights.shape())?;
            mask.where_cond(&weights.zeros_like()?, &weights)
        }
    }
}

/// D, `(n_heads, len, len)`
fn decays(decay: &[f64], len: usize, device: &Device) -> Result<Tensor> {
    let entry = |decay: f64, i: usize, j: usize| {
        if j > i { 0. } else { decay.powf((i - j) as f64) }
    };
    let entries = decay
        .iter()
        .flat_map(|&decay| (0..len).flat_map(move |i| (0..len).map(move |j| entry(decay, i, j))));
    Tensor::from_vec(entries.collect(), (decay.len(), len, len), device)
}
