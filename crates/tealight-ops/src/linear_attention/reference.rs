//! The definition, in plain tensor operations.

use candle_core::{DType, Device, Result, Tensor};

use super::Reads;
use crate::softmax;

/// `log_query (batch, n_heads, q_len, n_features)`, `log_key (batch, n_heads, kv_len, n_features)`
/// and `value (batch, n_heads, kv_len, width)` → `(batch, n_heads, q_len, width)`
pub fn linear_attention(
    log_query: &Tensor,
    log_key: &Tensor,
    value: &Tensor,
    reads: Reads,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    weights(log_query, log_key, reads, key_padding_mask)?.matmul(&value.contiguous()?)
}

/// φ(qᵢ)ᵀ φ(kⱼ) / Σⱼ φ(qᵢ)ᵀ φ(kⱼ): `log_query (batch, n_heads, q_len, n_features)`,
/// `log_key (batch, n_heads, kv_len, n_features)` → `(batch, n_heads, q_len, kv_len)`
pub fn weights(
    log_query: &Tensor,
    log_key: &Tensor,
    reads: Reads,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let logs = log_query.unsqueeze(3)?.broadcast_add(&log_key.unsqueeze(2)?)?;
    let scores = log_sum_exp(&logs)?; // (batch, n_heads, q_len, kv_len)
    softmax::reference::softmax(&forbid(&scores, reads, key_padding_mask)?)
}

/// ln Σ exp(x) over the last dimension; −∞ where there is nothing but −∞.
fn log_sum_exp(x: &Tensor) -> Result<Tensor> {
    let last = x.rank() - 1;
    let max = x.detach().max_keepdim(last)?;
    let max = max.eq(f64::NEG_INFINITY)?.where_cond(&max.zeros_like()?, &max)?;
    (x.broadcast_sub(&max)?.exp()?.sum(last)?.log()? + max.squeeze(last)?)?.contiguous()
}

/// −∞ in place of the scores `(batch, n_heads, q_len, kv_len)` that are padding or in the future.
fn forbid(scores: &Tensor, reads: Reads, key_padding_mask: Option<&Tensor>) -> Result<Tensor> {
    let (batch, _n_heads, q_len, kv_len) = scores.dims4()?;
    let nothing = Tensor::new(f64::NEG_INFINITY, scores.device())?
        .to_dtype(scores.dtype())?
        .broadcast_as(scores.shape())?;
    let mut scores = scores.clone();
    if reads == Reads::Past {
        let future = future(q_len, kv_len, scores.device())?;
        scores = future.broadcast_as(scores.shape())?.where_cond(&nothing, &scores)?;
    }
    if let Some(mask) = key_padding_mask {
        let mask = mask.to_dtype(DType::U8)?.reshape((batch, 1, 1, kv_len))?;
        scores = mask.broadcast_as(scores.shape())?.where_cond(&nothing, &scores)?;
    }
    Ok(scores)
}

/// `(q_len, kv_len)` of u8: 1 where the key comes after the query.
pub(crate) fn future(q_len: usize, kv_len: usize, device: &Device) -> Result<Tensor> {
    let flags = (0..q_len).flat_map(|i| (0..kv_len).map(move |j| u8::from(j > i)));
    Tensor::from_vec(flags.collect(), (q_len, kv_len), device)
}
