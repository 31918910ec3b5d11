//! Softmax over the last dimension, stable for scores of any size.
//!
//! ```text
//! softmax(x)ᵢ     = exp(xᵢ − max x) / Σⱼ exp(xⱼ − max x)
//! log_softmax(x)ᵢ = xᵢ − max x − ln Σⱼ exp(xⱼ − max x)
//!
//! dx = y ⊙ (g − Σⱼ yⱼ gⱼ)       of y = softmax(x)
//! dx = g − exp(y) Σⱼ gⱼ         of y = log_softmax(x)
//! ```
//!
//! Subtracting the maximum (Goodfellow et al. 2016, §4.1) keeps every exponential at most 1, so that
//! scores of ±200 do not overflow. A row of −∞ alone, as a mask produces for a sequence of padding,
//! has no finite maximum. Its softmax is *defined* as zeros with a gradient of zero, its log-softmax
//! as −∞. (`torch` returns NaN, which one padded example then spreads over the batch.)

mod cpu;
mod cuda;
pub mod reference;

use candle_core::{D, Result, Tensor};

pub(crate) use cpu::{exponentials, softmax_backward, softmax_row};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened};
use crate::backend::element::Element;

/// `x (.., width)` → `(.., width)`: numbers from 0 to 1 that sum to 1 over the last dimension. A score
/// about 100 below the largest underflows to 0 in f32.
///
/// A row of −∞ alone gives zeros and has a gradient of zero.
///
/// # Errors
/// If `x` is a scalar.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    dispatch!(match [x] {
        Cpu(T) => over_rows("softmax", x, cpu::softmax::<T>, cpu::softmax_backward),
        Cuda => cuda::softmax("softmax", x, cuda::RowResult::Weights),
        Reference => widened(x, reference::softmax),
    })
}

/// `x (.., width)` → `(.., width)`: the logarithm of [`softmax`], accurate where that underflows.
///
/// A row of −∞ alone stays −∞.
///
/// # Errors
/// If `x` is a scalar.
pub fn log_softmax(x: &Tensor) -> Result<Tensor> {
    dispatch!(match [x] {
        Cpu(T) => over_rows("log-softmax", x, cpu::log_softmax::<T>, cpu::log_softmax_backward),
        Cuda => cuda::softmax("log-softmax", x, cuda::RowResult::Logarithms),
        Reference => widened(x, reference::log_softmax),
    })
}

/// y = `forward`(x, width), a function of each row, with the gradient `backward`(y, g, width).
pub(crate) fn over_rows<T: Element>(
    name: &'static str,
    x: &Tensor,
    forward: fn(&[T], usize) -> Vec<T>,
    backward: fn(&[T], &[T], usize) -> Vec<T>,
) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    fused(name, [x], x.shape(), Saved::Output, |[x]| {
        (forward(x, width), move |_, y, g| [backward(y, g, width)])
    })
}
