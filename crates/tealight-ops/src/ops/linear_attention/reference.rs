//! The definition, in plain tensor operations.

use candle_core::{D, Device, Result, Tensor};

use crate::ops::reach::Reach;
use crate::ops::softmax;

/// `log_query (batch, n_heads, q_len, n_features)`, `log_key (batch, n_heads, kv_len, n_features)`
/// and `value (batch, n_heads, kv_len, width)` → `(batch, n_heads, q_len, width)`
pub fn linear_attention(
    log_query: &Tensor,
    log_key: &Tensor,
    value: &Tensor,
    reach: Reach,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    match reach {
        Reach::Past => {
            weights(log_query, log_key, reach, key_padding_mask)?.matmul(&value.contiguous()?)
        }
        Reach::Everything => read_sums(log_query, log_key, value, key_padding_mask),
    }
}

/// φ(qᵢ)ᵀ S / φ(qᵢ)ᵀ z, where S and z are the same for all queries.
///
/// Computed relative to the largest logarithm of each feature, which cancels.
fn read_sums(
    log_query: &Tensor,
    log_key: &Tensor,
    value: &Tensor,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let log_key = log_key.transpose(2, 3)?; // (batch, n_heads, n_features, kv_len)
    let log_key = forbid(&log_key, Reach::Everything, key_padding_mask)?.contiguous()?;
    let max = finite_max(&log_key)?; // (batch, n_heads, n_features, 1)
    let key = log_key.broadcast_sub(&max)?.exp()?;
    let sum = key.matmul(&value.contiguous()?)?; // (batch, n_heads, n_features, width)
    let total = key.sum_keepdim(D::Minus1)?; // (batch, n_heads, n_features, 1)

    let logs = log_query.broadcast_add(&max.transpose(2, 3)?)?;
    let query = logs.broadcast_sub(&finite_max(&logs)?)?.exp()?;
    let total = query.matmul(&total)?; // (batch, n_heads, q_len, 1)
    let total = (&total + total.eq(0.)?.to_dtype(total.dtype())?)?;
    query.matmul(&sum)?.broadcast_div(&total)
}

/// The maximum over the last dimension, as a constant; 0 if all elements are −∞.
fn finite_max(x: &Tensor) -> Result<Tensor> {
    let max = x.detach().max_keepdim(D::Minus1)?;
    max.eq(f64::NEG_INFINITY)?.where_cond(&max.zeros_like()?, &max)
}

/// φ(qᵢ)ᵀ φ(kⱼ) / Σⱼ φ(qᵢ)ᵀ φ(kⱼ): `log_query (batch, n_heads, q_len, n_features)`,
/// `log_key (batch, n_heads, kv_len, n_features)` → `(batch, n_heads, q_len, kv_len)`
pub fn weights(
    log_query: &Tensor,
    log_key: &Tensor,
    reach: Reach,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let logs = log_query.unsqueeze(3)?.broadcast_add(&log_key.unsqueeze(2)?)?;
    let scores = log_sum_exp(&logs)?; // (batch, n_heads, q_len, kv_len)
    softmax::reference::softmax(&forbid(&scores, reach, key_padding_mask)?)
}

/// ln Σ exp(x) over the last dimension; −∞ if all elements are −∞.
fn log_sum_exp(x: &Tensor) -> Result<Tensor> {
    let max = finite_max(x)?;
    let sum = x.broadcast_sub(&max)?.exp()?.sum(D::Minus1)?;
    (sum.log()? + max.squeeze(D::Minus1)?)?.contiguous()
}

/// Scores `(batch, n_heads, q_len, kv_len)` with −∞ for keys that are padding or in the future; or features
/// `(batch, n_heads, n_features, kv_len)` with −∞ for keys that are padding.
pub(crate) fn forbid(
    scores: &Tensor,
    reach: Reach,
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let (batch, _n_heads, q_len, kv_len) = scores.dims4()?;
    let nothing = Tensor::new(f64::NEG_INFINITY, scores.device())?
        .to_dtype(scores.dtype())?
        .broadcast_as(scores.shape())?;
    let mut scores = scores.clone();
    if reach == Reach::Past {
        let future = future(q_len, kv_len, scores.device())?;
        scores = future.broadcast_as(scores.shape())?.where_cond(&nothing, &scores)?;
    }
    if let Some(mask) = key_padding_mask {
        let mask = mask.reshape((batch, 1, 1, kv_len))?;
        scores = mask.broadcast_as(scores.shape())?.where_cond(&nothing, &scores)?;
    }
    Ok(scores)
}

/// `(q_len, kv_len)` of u8: 1 where the key comes after the query.
fn future(q_len: usize, kv_len: usize, device: &Device) -> Result<Tensor> {
    let flags = (0..q_len).flat_map(|i| (0..kv_len).map(move |j| u8::from(j > i)));
    Tensor::from_vec(flags.collect(), (q_len, kv_len), device)
}
