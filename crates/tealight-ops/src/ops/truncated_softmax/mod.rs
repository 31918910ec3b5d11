//! Softmax over the last dimension of which only the large part is kept.
//!
//! ```text
//! top_k             softmax over the k largest scores, zero elsewhere
//! cut               pᵢ where pᵢ > threshold, else 0,   p = softmax(x)
//! cut_renormalized  the same, divided by the sum of what is left
//! score_cut         softmax over the scores above the threshold, zero elsewhere
//! ```
//!
//! Softmax over a part is softmax of x with −∞ elsewhere, so the gradient of three of them is that
//! of a softmax, dx = y ⊙ (g − Σⱼ yⱼ gⱼ). Under `cut` what was cut still stands in the denominator:
//! dx = p ⊙ (ĝ − Σⱼ pⱼ ĝⱼ), where ĝ is g with zeros where p was cut. Which elements are kept is a
//! step function of the scores and has no derivative.
//!
//! The k largest alone are those of the Explicit Sparse Transformer (Zhao et al. 2019,
//! <https://arxiv.org/abs/1912.11637>). It keeps all that equal the k-th; here at most k are kept, of
//! equals those that come first.
//!
//! An element that is −∞ has no part in the row. A row of which nothing is left gives zeros and has
//! a gradient of zero.

mod cpu;
pub mod reference;

use std::marker::PhantomData;

use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Tensor, bail};

use crate::autograd::graph::apply1;
use crate::backend::buffer::{View, slice, stored, tensor};
use crate::backend::choice::{Backend, widened};
use crate::backend::element::Element;
use crate::ops::softmax::softmax_backward;

/// What is kept of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Truncation {
    /// The so many largest scores; of equals the first. At least 1.
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
    let width = x.dim(D::Minus1)?;
    match Backend::of(&[x]) {
        Backend::F32 => apply1(&x.contiguous()?, Truncated::<f32>::new(truncation, width)),
        Backend::F64 => apply1(&x.contiguous()?, Truncated::<f64>::new(truncation, width)),
        Backend::Cuda | Backend::Reference => {
            widened(x, |x| reference::truncated_softmax(x, truncation))
        }
    }
}

struct Truncated<T> {
    truncation: Truncation,
    width: usize,
    element: PhantomData<T>,
}

impl<T> Truncated<T> {
    fn new(truncation: Truncation, width: usize) -> Self {
        Self { truncation, width, element: PhantomData }
    }
}

impl<T: Element> CustomOp1 for Truncated<T> {
    fn name(&self) -> &'static str {
        "truncated-softmax"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = slice::<T>(x, layout)?;
        let y = match self.truncation {
            Truncation::TopK(k) => cpu::top_k(x, self.width, k),
            Truncation::Cut(t) => cpu::cut(x, self.width, T::from_f64(t)),
            Truncation::CutRenormalized(t) => cpu::cut_renormalized(x, self.width, T::from_f64(t)),
            Truncation::ScoreCut(t) => cpu::score_cut(x, self.width, T::from_f64(t)),
        };
        Ok(stored(y, layout.shape()))
    }

    fn bwd(&self, x: &Tensor, y: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let gradient = gradient.contiguous()?;
        let gradient = View::<T>::of(&gradient)?;
        let dx = match self.truncation {
            Truncation::Cut(t) => {
                cpu::cut_backward(&View::of(x)?, &gradient, self.width, T::from_f64(t))
            }
            _ => softmax_backward(&View::of(y)?, &gradient, self.width),
        };
        tensor(dx, y.shape()).map(Some)
    }
}
