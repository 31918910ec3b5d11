//! The definition, in plain tensor operations: O(len² · d_model) memory.

use candle_core::{DType, Device, Result, Tensor};

use super::Alignment;
use crate::ops::padding_mask::additive;
use crate::ops::reach::Reach;
use crate::ops::softmax::reference::softmax;

/// `key (batch, kv_len, d_model)`, `value` likewise, `w (q_len, kv_len)` → `(batch, q_len, d_model)`
pub fn aft_full(
    key: &Tensor,
    value: &Tensor,
    w: &Tensor,
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    let weights = weights(key, &w.unsqueeze(0)?, key_padding_mask, reach)?;
    mean(&weights, &value.unsqueeze(3)?)?.squeeze(3)
}

/// `key (batch, len, d_model)`, `value` likewise, `w (len, 2 window − 1)` → `(batch, len, d_model)`
pub fn aft_local(
    key: &Tensor,
    value: &Tensor,
    w: &Tensor,
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    aft_full(key, value, &dense_of_local(w)?, key_padding_mask, reach)
}

/// `key (batch, len, n_heads)`, `value (batch, len, n_heads, head_dim)`, `w (n_heads, kernel_size)` →
/// `(batch, len, n_heads, head_dim)`
pub fn aft_conv(
    key: &Tensor,
    value: &Tensor,
    w: &Tensor,
    alignment: Alignment,
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    let (_, len, _) = key.dims3()?;
    let weights = weights(key, &dense_of_conv(w, len, alignment)?, key_padding_mask, reach)?;
    mean(&weights, value)
}

/// `key (batch, kv_len, d_model)`, `value` likewise → `(batch, kv_len, d_model)` under [`Reach::Past`],
/// else `(batch, 1, d_model)`
pub fn aft_simple(
    key: &Tensor,
    value: &Tensor,
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    let (_, kv_len, _) = key.dims3()?;
    let q_len = if reach == Reach::Past { kv_len } else { 1 };
    let w = Tensor::zeros((q_len, kv_len), key.dtype(), key.device())?;
    aft_full(key, value, &w, key_padding_mask, reach)
}

/// `key (batch, kv_len, n_maps)`, `w (1 or n_maps, q_len, kv_len)` → `(batch, n_maps, q_len, kv_len)`:
/// exp(K_t' + w_t,t') / Σ_t' exp(K_t' + w_t,t'), zeros for a row that reads nothing.
///
/// # Errors
/// If shapes do not match.
pub fn weights(
    key: &Tensor,
    w: &Tensor,
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    let (_, q_len, kv_len) = w.dims3()?;
    let key = key.transpose(1, 2)?.unsqueeze(2)?; // (batch, n_maps, 1, kv_len)
    let mut scores = key.broadcast_add(&w.unsqueeze(0)?)?; // (batch, n_maps, q_len, kv_len)
    if let Some(padding) = key_padding_mask {
        let padding = additive(padding, scores.dtype())?.unsqueeze(1)?.unsqueeze(1)?;
        scores = scores.broadcast_add(&padding)?;
    }
    if reach == Reach::Past {
        let future = offsets(q_len, kv_len, key.device())?.gt(0.)?;
        scores = scores.broadcast_add(&additive(&future, scores.dtype())?)?;
    }
    softmax(&scores)
}

/// `w (len, 2 window − 1)` → `(len, len)`, zeros outside the window.
///
/// # Errors
/// If `w` is not of rank two.
pub fn dense_of_local(w: &Tensor) -> Result<Tensor> {
    let (len, n_taps) = w.dims2()?;
    let (tap, inside) = taps(len, n_taps, n_taps / 2, w)?;
    w.gather(&tap, 1)? * inside
}

/// `w (n_heads, kernel_size)` → `(n_heads, len, len)`, zeros outside the filter.
///
/// # Errors
/// If `w` is not of rank two.
pub fn dense_of_conv(w: &Tensor, len: usize, alignment: Alignment) -> Result<Tensor> {
    let (n_heads, n_taps) = w.dims2()?;
    let origin = match alignment {
        Alignment::Centred => n_taps / 2,
        Alignment::Left => n_taps - 1,
    };
    let (tap, inside) = taps(len, n_taps, origin, w)?;
    let w = w.index_select(&tap.flatten_all()?, 1)?.reshape((n_heads, len, len))?;
    w.broadcast_mul(&inside)
}

/// The tap that row t has for t', and whether it has one: `(len, len)` twice.
fn taps(len: usize, n_taps: usize, origin: usize, w: &Tensor) -> Result<(Tensor, Tensor)> {
    let tap = (offsets(len, len, w.device())? + origin as f64)?;
    let clamped = tap.clamp(0., n_taps as f64 - 1.)?;
    Ok((clamped.to_dtype(DType::U32)?, clamped.eq(&tap)?.to_dtype(w.dtype())?))
}

/// t' − t: `(q_len, kv_len)`, f64
fn offsets(q_len: usize, kv_len: usize, device: &Device) -> Result<Tensor> {
    let positions = |len| Tensor::arange(0., len as f64, device);
    positions(kv_len)?.unsqueeze(0)?.broadcast_sub(&positions(q_len)?.unsqueeze(1)?)
}

/// Σ_t' weights · value: `(batch, n_maps, q_len, kv_len)`, `(batch, kv_len, n_maps, width)` →
/// `(batch, q_len, n_maps, width)`
fn mean(weights: &Tensor, value: &Tensor) -> Result<Tensor> {
    weights.matmul(&value.transpose(1, 2)?.contiguous()?)?.transpose(1, 2)?.contiguous()
}
