//! The definition, in plain tensor operations: a row of scores for every query.

use candle_core::{Device, Result, Tensor};

use super::problem::Problem;
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
    let problem = Problem::new(query, key, value, options)?;
    let mut weights = softmax(&scores(&problem, query, key, options)?)?;
    if let Some(options) = problem.dropout {
        weights = dropout(&weights, options.rate, options.stream)?;
    }
    let value = repeated(&heads_first(value, options)?, problem.group())?;
    heads_first(&weights.matmul(&value)?, options)
}

/// `(batch, len, heads, width)` as `(batch, heads, len, width)`, and back.
fn heads_first(x: &Tensor, options: &Options<'_>) -> Result<Tensor> {
    match options.layout {
        Layout::HeadsFirst => Ok(x.clone()),
        Layout::HeadsLast => x.transpose(1, 2)?.contiguous(),
    }
}

/// `(batch, n_heads, q_len, kv_len)`, `-inf` where reading is forbidden.
pub(super) fn scores(
    problem: &Problem,
    query: &Tensor,
    key: &Tensor,
    options: &Options<'_>,
) -> Result<Tensor> {
    let key = repeated(&heads_first(key, options)?, problem.group())?;
    let query = heads_first(query, options)?;
    let mut scores = (&query * problem.scale)?.contiguous()?.matmul(&key.t()?)?;
    if let Some(bias) = options.bias {
        scores = scores.broadcast_add(&bias.to_dtype(scores.dtype())?)?;
    }
    if !problem.band.is_everything() {
        scores = closed(&scores, &outside_band(problem, query.device())?)?;
    }
    if let Some(padding) = options.key_padding_mask {
        scores = closed(&scores, &padding.reshape((problem.batch, 1, 1, problem.kv_len))?)?;
    }
    if let Some(segments) = options.segments {
        let (batch, len) = segments.dims2()?;
        let of_queries = segments.reshape((batch, 1, len, 1))?;
        let of_keys = segments.reshape((batch, 1, 1, len))?;
        scores = closed(&scores, &of_queries.broadcast_ne(&of_keys)?)?;
    }
    Ok(scores)
}

/// `(batch, n_kv_heads, len, width)` → `(batch, n_kv_heads · group, len, width)`
fn repeated(x: &Tensor, group: usize) -> Result<Tensor> {
    if group == 1 {
        return x.contiguous();
    }
    let (batch, n_heads, len, width) = x.dims4()?;
    let shape = (batch, n_heads, group, len, width);
    x.unsqueeze(2)?.broadcast_as(shape)?.reshape((batch, n_heads * group, len, width))
}

/// `-inf` where the flag is not 0.
fn closed(scores: &Tensor, flags: &Tensor) -> Result<Tensor> {
    let lowest = Tensor::full(f64::NEG_INFINITY, scores.shape(), scores.device())?;
    flags.broadcast_as(scores.shape())?.where_cond(&lowest.to_dtype(scores.dtype())?, scores)
}

/// `(q_len, kv_len)` of u8: 1 where causality or the window forbids reading.
fn outside_band(problem: &Problem, device: &Device) -> Result<Tensor> {
    let (q_len, kv_len) = (problem.q_len, problem.kv_len);
    let mut flags = vec![1_u8; q_len * kv_len];
    for (row, flags) in flags.chunks_exact_mut(kv_len.max(1)).enumerate() {
        flags[problem.band.keys(row)].fill(0);
    }
    Tensor::from_vec(flags, (q_len, kv_len), device)
}
