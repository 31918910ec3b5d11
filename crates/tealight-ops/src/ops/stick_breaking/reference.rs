//! The definition, in plain tensor operations.

use candle_core::{D, Result, Tensor};

use super::Rest;
use crate::ops::softplus::reference::ln_1_plus;

/// As [`stick_breaking`](super::stick_breaking()).
pub fn stick_breaking(x: &Tensor, rest: Rest) -> Result<Tensor> {
    let (q_len, kv_len) = (x.dim(D::Minus2)?, x.dim(D::Minus1)?);
    let flags = |is: fn(usize, usize) -> bool| {
        let flags = (0..q_len).flat_map(|row| (0..kv_len).map(move |key| (row, key)));
        let flags = flags.map(|(row, key)| u8::from(is(key, row + kv_len - q_len)));
        Tensor::from_vec(flags.collect(), (q_len, kv_len), x.device())?.broadcast_as(x.shape())
    };
    let is_open = (flags(|key, own| key < own)? * x.gt(f64::NEG_INFINITY)?)?;
    let open = is_open.to_dtype(x.dtype())?;
    let x = is_open.where_cond(x, &x.zeros_like()?)?;
    // ln σ(x) = min(x, 0) − ln(1 + e^(−|x|)), and ln(1 − σ(x)) = ln σ(x) − x
    let taken = (x.minimum(0.)? - ln_1_plus(&x.abs()?.neg()?.exp()?)?)?;
    let kept = ((&taken - &x)? * &open)?;
    let total = kept.sum_keepdim(D::Minus1)?;
    // Sums from the right, because the difference of two long sums has only the digits that both have.
    let last = kept.rank() - 1;
    let nearer = (kept.flip(&[last])?.cumsum(last)?.flip(&[last])? - &kept)?;
    let weights = ((taken + nearer)?.exp()? * &open)?;
    match rest {
        Rest::Lost => Ok(weights),
        Rest::Own => {
            let own = flags(|key, own| key == own)?.to_dtype(weights.dtype())?;
            weights + own.broadcast_mul(&total.exp()?)?
        }
    }
}
