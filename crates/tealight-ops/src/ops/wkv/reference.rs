//! The definition, in plain tensor operations.

use candle_core::{Device, Result, Tensor};

use crate::ops::attention::reference::without;
use crate::ops::linear_attention::reference::forbid;
use crate::ops::reach::Reach;
use crate::ops::softmax;
use crate::ops::tokens::Tokens;

/// `key` and `value (batch, len, d_model)`, `decay` and `bonus (d_model)` → `(batch, len, d_model)`
pub fn wkv(
    key: &Tensor,
    value: &Tensor,
    decay: &Tensor,
    bonus: &Tensor,
    tokens: Tokens<'_>,
) -> Result<Tensor> {
    let weights = weights(key, decay, bonus, tokens)?; // (batch, d_model, len, len)
    let value = value.transpose(1, 2)?.unsqueeze(3)?; // (batch, d_model, len, 1)
    weights.matmul(&value.contiguous()?)?.squeeze(3)?.transpose(1, 2)?.contiguous()
}

/// The weight with which each position reads each other, per channel: `key (batch, len, d_model)`,
/// `decay` and `bonus (d_model)` → `(batch, d_model, len, len)`
pub fn weights(key: &Tensor, decay: &Tensor, bonus: &Tensor, tokens: Tokens<'_>) -> Result<Tensor> {
    let (_batch, len, d_model) = key.dims3()?;
    let parameter = |x: &Tensor| x.reshape((d_model, 1, 1));
    let distances = distances(len, key.device())?.to_dtype(key.dtype())?;
    let identity = Tensor::eye(len, key.dtype(), key.device())?;
    let past = parameter(decay)?.broadcast_mul(&distances)?.neg()?;
    let past = (past + parameter(bonus)?.broadcast_mul(&identity)?)?; // (d_model, len, len)
    let key = key.transpose(1, 2)?.unsqueeze(2)?; // (batch, d_model, 1, len)
    let scores = key.broadcast_add(&past)?; // (batch, d_model, len, len)
    let scores = forbid(&scores, Reach::Past, tokens.key_padding_mask)?;
    let Some(documents) = tokens.numbers()? else {
        return softmax::reference::softmax(&scores);
    };
    let of_query = documents.unsqueeze(2)?;
    let is_other = of_query.broadcast_ne(&documents.unsqueeze(1)?)?.unsqueeze(1)?; // (batch, 1, len, len)
    softmax::reference::softmax(&without(&scores, &is_other)?)
}

/// i − 1 − j where j < i, else 0: `(len, len)`
fn distances(len: usize, device: &Device) -> Result<Tensor> {
    let distances = (0..len).flat_map(|i| (0..len).map(move |j| i.saturating_sub(1 + j) as f64));
    Tensor::from_vec(distances.collect(), (len, len), device)
}
