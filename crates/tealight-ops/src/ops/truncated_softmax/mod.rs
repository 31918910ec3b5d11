//! Softmax over the last dimension that keeps only the large scores or weights.
//!
//! ```text
//! top_k             softmax over the k largest scores, zero elsewhere
//! cut               pᵢ where pᵢ > threshold, else 0,   p = softmax(x)
//! cut_renormalized  the same, divided by the sum of what is left
//! score_cut         softmax over the scores above the threshold, zero elsewhere
//! ```
//!
//! Softmax over some elements is the softmax of x with −∞ elsewhere, so three of them have the gradient
//! of a softmax, dx = y ⊙ (g − Σⱼ yⱼ gⱼ). Under `cut` the weights that were cut still count in the
//! denominator: dx = p ⊙ (ĝ − Σⱼ pⱼ ĝⱼ), where ĝ is g with zeros where p was cut. The choice of the kept
//! elements has no derivative.
//!
//! `top_k` is the attention of the Explicit Sparse Transformer (Zhao et al. 2019,
//! <https://arxiv.org/abs/1912.11637>), which keeps all scores equal to the k-th. Here at most k are kept,
//! the first of equal ones.
//!
//! An element of −∞ gets weight 0. A row without a kept element gives zeros and has a gradient of zero.

mod cpu;
pub mod reference;

use candle_core::{D, Result, Tensor, bail};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened};
use crate::backend::element::Element;
use crate::ops::softmax::softmax_backward;

/// Which elements of a row are kept.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Truncation {
    /// This many of the largest scores, the first of equal ones. At least 1.
    TopK(usize),
    /// Weights above the threshold, which is in [0, 1); a row then sums to at most 1.
    Cut(f64),
    /// Weights above the threshold, which is in [0, 1), divided by their sum.
    CutRenormalized(f64),
    /// Scores above the threshold, any number.
    ScoreCut(f64),
}

impl Truncation {
    fn check(self) -> Result<()> {
        match self {
            Self::TopK(0) => bail!("the largest 0 scores of a row have no softmax"),
            Self::Cut(t) | Self::CutRenormalized(t) if !(0. ..1.).contains(&t) => {
                bail!("a threshold of {t} for weights is outside [0, 1)")
            }
            Self::ScoreCut(t) if t.is_nan() => bail!("a threshold of scores is not a number"),
            _ => Ok(()),
        }
    }
}

/// `x (.., width)` → `(.., width)`
///
/// # Errors
/// If `x` is a scalar, or the number that `truncation` holds is out of its range.
pub fn truncated_softmax(x: &Tensor, truncation: Truncation) -> Result<Tensor> {
    truncation.check()?;
    dispatch!(match [x] {
        Cpu(T) => on_cpu::<T>(x, truncation),
        Cuda | Reference => widened(x, |x| reference::truncated_softmax(x, truncation)),
    })
}

fn on_cpu<T: Element>(x: &Tensor, truncation: Truncation) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    // The output has zeros in place of the weights that were cut, so this gradient needs the scores.
    let is_cut = matches!(truncation, Truncation::Cut(_));
    let saved = if is_cut { Saved::Inputs } else { Saved::Output };
    fused("truncated-softmax", [x], x.shape(), saved, |[x]| {
        let backward = move |[x]: [&[T]; 1], y: &[T], g: &[T]| match truncation {
            Truncation::Cut(t) => [cpu::cut_backward(x, g, width, T::from_f64(t))],
            _ => [softmax_backward(y, g, width)],
        };
        (cpu::truncated_softmax(x, width, truncation), backward)
    })
}
