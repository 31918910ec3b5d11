//! The definition, in plain tensor operations: a row of scores for every query. It computes scale, groups
//! and masks from the options by itself and shares nothing with the fused loop.

use candle_core::{D, DType, Device, Result, Tensor};

use super::{Layout, Options};
use crate::ops::dropout::reference::dropout;
use crate::ops::softmax::reference::softmax;

/// The shapes of [`attention`](super::attention()).
pub fn attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: &Options<'_>,
) -> Result<Tensor> {
    let mut weights = distribution(&scores(query, key, options)?, options, softmax)?;
    if let Some(draw) = options.dropout.filter(|draw| draw.rate > 0.) {
        weights = dropout(&weights, draw.rate, draw.stream)?;
    }
    let (_, n_heads, _, _) = weights.dims4()?;
    let value = repeated(&heads_first(value, options)?, n_heads)?;
    heads_first(&weights.matmul(&value)?, options)
}

/// The softmax of each row of scores, with the sink beside them if there is one.
pub(super) fn distribution(
    scores: &Tensor,
    options: &Options<'_>,
    softmax: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let Some(sink) = options.sink else { return softmax(scores) };
    let (batch, n_heads, q_len, kv_len) = scores.dims4()?;
    let sink = sink.to_dtype(scores.dtype())?.reshape((1, n_heads, 1, 1))?;
    let sink = sink.broadcast_as((batch, n_heads, q_len, 1))?;
    softmax(&Tensor::cat(&[scores, &sink], D::Minus1)?)?.narrow(D::Minus1, 0, kv_len)
}

/// `(batch, n_heads, q_len, kv_len)`, −∞ for pairs that are masked.
pub(super) fn scores(query: &Tensor, key: &Tensor, options: &Options<'_>) -> Result<Tensor> {
    let query = heads_first(query, options)?;
    let (batch, n_heads, q_len, head_dim) = query.dims4()?;
    let key = repeated(&heads_first(key, options)?, n_heads)?;
    let (_, _, kv_len, _) = key.dims4()?;
    let scale = options.scale.unwrap_or(1. / (head_dim as f64).sqrt());
    let mut scores = (query * scale)?.contiguous()?.matmul(&key.t()?)?;
    if let Some(mask) = options.attn_mask {
        scores = scores.broadcast_add(&mask.to_dtype(scores.dtype())?)?;
    }
    if let Some(log_forget) = options.log_forget {
        let between = forgotten(log_forget, q_len, options)?;
        scores = (&scores + between.to_dtype(scores.dtype())?)?;
    }
    let distances = distances(q_len, kv_len, scores.device())?;
    if options.causal {
        scores = without(&scores, &distances.lt(0.)?)?;
    }
    if let Some(window) = options.window.map(|window| window as f64) {
        scores = without(&scores, &distances.ge(window)?)?;
        scores = without(&scores, &distances.le(-window)?)?;
    }
    if let Some(padding) = options.key_padding_mask {
        scores = without(&scores, &padding.reshape((batch, 1, 1, kv_len))?)?;
    }
    if let Some(segments) = options.segments {
        let query_segments = segments.reshape((batch, 1, q_len, 1))?;
        let key_segments = segments.reshape((batch, 1, 1, kv_len))?;
        scores = without(&scores, &query_segments.broadcast_ne(&key_segments)?)?;
    }
    Ok(scores)
}

/// c_i − c_j, `(batch, n_heads, q_len, kv_len)` of f64.
fn forgotten(log_forget: &Tensor, q_len: usize, options: &Options<'_>) -> Result<Tensor> {
    let (batch, _n_heads, kv_len) = log_forget.dims3()?;
    let mut log_forget = log_forget.to_dtype(DType::F64)?;
    if let Some(padding) = options.key_padding_mask {
        let padding = padding.reshape((batch, 1, kv_len))?.broadcast_as(log_forget.shape())?;
        log_forget = padding.where_cond(&log_forget.zeros_like()?, &log_forget)?;
    }
    let c = log_forget.cumsum(D::Minus1)?;
    c.narrow(D::Minus1, kv_len - q_len, q_len)?.unsqueeze(3)?.broadcast_sub(&c.unsqueeze(2)?)
}

/// `(batch, len, heads, width)` as `(batch, heads, len, width)`, and back.
fn heads_first(x: &Tensor, options: &Options<'_>) -> Result<Tensor> {
    match options.layout {
        Layout::HeadsFirst => Ok(x.clone()),
        Layout::HeadsLast => x.transpose(1, 2)?.contiguous(),
    }
}

/// `(batch, n_kv_heads, len, width)` → `(batch, n_heads, len, width)`: head h of the result is head
/// ⌊h · n_kv_heads / n_heads⌋ of `x`.
fn repeated(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (batch, n_kv_heads, len, width) = x.dims4()?;
    let copies =
        x.unsqueeze(2)?.broadcast_as((batch, n_kv_heads, n_heads / n_kv_heads, len, width))?;
    copies.reshape((batch, n_heads, len, width))
}

/// The distance from key j to query i, i + kv_len − q_len − j: `(q_len, kv_len)` of f64.
fn distances(q_len: usize, kv_len: usize, device: &Device) -> Result<Tensor> {
    let positions = |len| Tensor::arange(0., len as f64, device);
    let queries = (positions(q_len)? + kv_len as f64)?.unsqueeze(1)?;
    let keys = (positions(kv_len)? + q_len as f64)?.unsqueeze(0)?;
    queries.broadcast_sub(&keys)
}

/// −∞ where the flag is not 0.
pub(crate) fn without(scores: &Tensor, flags: &Tensor) -> Result<Tensor> {
    let lowest = Tensor::full(f64::NEG_INFINITY, scores.shape(), scores.device())?;
    flags.broadcast_as(scores.shape())?.where_cond(&lowest.to_dtype(scores.dtype())?, scores)
}
