//! The definition, in plain tensor operations: the recurrence.

use candle_core::{DType, Result, Tensor};

use super::{Erase, Operands};
use crate::ops::tokens::Tokens;

/// Outputs `(batch, len, n_heads, width)` and the state after the last position, `(batch, n_heads, n_features, width)`.
pub fn gated_delta_rule(operands: &Operands<'_>, tokens: Tokens<'_>) -> Result<[Tensor; 2]> {
    let Operands { query, key, value, strength, erase, log_decay, .. } = *operands;
    let (batch, len, n_heads, width) = value.dims4()?;
    let [query, key] = [query, key].map(|x| without_padding(&of_heads(x, n_heads)?, tokens));
    let (query, key, value) = (query?, key?, without_padding(value, tokens)?);
    let optional = |x: Option<&Tensor>| x.map(|x| without_padding(x, tokens)).transpose();
    let (strength, log_decay) = (optional(strength)?, optional(log_decay)?);
    let value = match &strength {
        Some(strength) => value.broadcast_mul(&strength.unsqueeze(3)?)?,
        None => value,
    };
    let erase = match (erase, &strength) {
        (Erase::Nothing, _) => None,
        (Erase::Key, None) => Some((key.clone(), key.clone())),
        (Erase::Key, Some(strength)) => {
            Some((key.broadcast_mul(&strength.unsqueeze(3)?)?, key.clone()))
        }
        (Erase::Along(e), _) => Some((without_padding(e, tokens)?, key.clone())),
        (Erase::Between { along, key }, _) => {
            Some((without_padding(along, tokens)?, without_padding(key, tokens)?))
        }
    };
    let at = |x: &Tensor, t: usize| x.narrow(1, t, 1)?.squeeze(1)?.contiguous();
    let mut state = initial(operands)?;
    let mut outputs = Vec::with_capacity(len);
    for t in 0..len {
        if let Some(begins) = begins(tokens, t)? {
            state = state.broadcast_mul(&(1. - begins.to_dtype(state.dtype())?)?)?;
        }
        if let Some(log_decay) = &log_decay {
            // `(batch, n_heads, 1 or n_features, 1)`
            let decay = at(log_decay, t)?.exp()?.reshape((batch, n_heads, (), 1))?;
            state = state.broadcast_mul(&decay)?;
        }
        let write = at(&key, t)?.unsqueeze(3)?.matmul(&at(&value, t)?.unsqueeze(2)?)?;
        if let Some((along, key)) = &erase {
            let held = at(along, t)?.unsqueeze(2)?.matmul(&state)?; // (batch, n_heads, 1, width)
            state = (&state - at(key, t)?.unsqueeze(3)?.matmul(&held)?)?;
        }
        state = (state + write)?;
        outputs.push(
            at(&query, t)?.unsqueeze(2)?.matmul(&state)?.reshape((batch, 1, n_heads, width))?,
        );
    }
    Ok([Tensor::cat(&outputs, 1)?, state])
}

/// `x (batch, len, n_groups, width)` for each head of the groups: `(batch, len, n_heads, width)`
fn of_heads(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (batch, len, n_groups, width) = x.dims4()?;
    let x = x.unsqueeze(3)?;
    let all = x.broadcast_as((batch, len, n_groups, n_heads / n_groups, width))?;
    all.reshape((batch, len, n_heads, width))
}

/// The results where there are no positions, or no numbers.
pub(super) fn nothing(operands: &Operands<'_>, wide: DType, dtype: DType) -> Result<[Tensor; 2]> {
    let output = Tensor::zeros(operands.value.shape(), dtype, operands.value.device())?;
    Ok([output, initial(operands)?.to_dtype(wide)?])
}

/// S before the first position.
fn initial(operands: &Operands<'_>) -> Result<Tensor> {
    let (batch, _len, n_heads, width) = operands.value.dims4()?;
    let (_, _, _, n_features) = operands.key.dims4()?;
    let shape = (batch, n_heads, n_features, width);
    match operands.state {
        Some(state) => Ok(state.clone()),
        None => Tensor::zeros(shape, operands.value.dtype(), operands.value.device()),
    }
}

/// `x (batch, len, ..)` with zeros at padding, where it may hold NaN: nothing decays, is erased, written or read there.
fn without_padding(x: &Tensor, tokens: Tokens<'_>) -> Result<Tensor> {
    let Some(mask) = tokens.key_padding_mask else { return Ok(x.clone()) };
    let mut shape = vec![1; x.rank()];
    shape[..2].copy_from_slice(mask.dims());
    mask.reshape(shape)?.broadcast_as(x.shape())?.where_cond(&x.zeros_like()?, x)
}

/// 1 where another document begins at position `t`, `(batch, 1, 1, 1)`.
fn begins(tokens: Tokens<'_>, t: usize) -> Result<Option<Tensor>> {
    let Some(segments) = tokens.segments.filter(|_| t > 0) else { return Ok(None) };
    let (batch, _len) = segments.dims2()?;
    let begins = segments.narrow(1, t, 1)?.ne(&segments.narrow(1, t - 1, 1)?)?;
    Ok(Some(begins.reshape((batch, 1, 1, 1))?))
}
