//! The definition, in plain tensor operations.

use candle_core::{D, DType, Result, Tensor};

use super::Truncation;
use crate::ops::softmax::reference::softmax;

/// `x (.., width)` → `(.., width)`
pub fn truncated_softmax(x: &Tensor, truncation: Truncation) -> Result<Tensor> {
    if x.elem_count() == 0 {
        return Ok(x.clone()); // Candle's maximum fails without elements.
    }
    // Comparisons with NaN are false, so NaN is not cut.
    match truncation {
        Truncation::TopK(k) => {
            softmax(&filled(x, &below_top_k(&x.detach(), k)?, f64::NEG_INFINITY)?)
        }
        Truncation::ScoreCut(t) => softmax(&filled(x, &x.le(t)?, f64::NEG_INFINITY)?),
        Truncation::Cut(t) => cut(x, t),
        Truncation::CutRenormalized(t) => {
            let weights = cut(x, t)?;
            let sum = weights.sum_keepdim(D::Minus1)?; // (.., 1)
            let is_empty = sum.eq(0.)?.to_dtype(x.dtype())?;
            weights.broadcast_div(&(sum + is_empty)?)
        }
    }
}

fn cut(x: &Tensor, threshold: f64) -> Result<Tensor> {
    let weights = softmax(x)?;
    filled(&weights, &weights.le(threshold)?, 0.)
}

/// Where `x` is not among the k largest of its row: `(.., width)`.
///
/// Takes the largest element k times. Candle's sort does not keep the order of equal elements.
fn below_top_k(x: &Tensor, k: usize) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    let positions = Tensor::arange(0, width as u32, x.device())?.to_dtype(x.dtype())?;
    let positions = positions.broadcast_as(x.shape())?;
    let mut is_below = Tensor::ones(x.shape(), DType::U8, x.device())?;
    let mut rest = x.clone();
    for _ in 0..k.min(width) {
        let is_smaller = rest.broadcast_ne(&rest.max_keepdim(D::Minus1)?)?;
        let place = filled(&positions, &is_smaller, width as f64)?;
        let is_first = positions.broadcast_eq(&place.min_keepdim(D::Minus1)?)?;
        is_below = is_first.where_cond(&is_below.zeros_like()?, &is_below)?;
        rest = filled(&rest, &is_first, f64::NEG_INFINITY)?;
    }
    is_below.minimum(&x.eq(x)?) // NaN is kept.
}

/// `x`, with `value` where `at`.
fn filled(x: &Tensor, at: &Tensor, value: f64) -> Result<Tensor> {
    let value = Tensor::new(value, x.device())?.to_dtype(x.dtype())?;
    at.where_cond(&value.broadcast_as(x.shape())?, x)
}
