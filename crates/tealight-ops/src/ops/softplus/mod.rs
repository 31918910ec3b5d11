//! A scaled softplus, by which recurrences compute steps and decays (Dao and Gu 2024,
//! <https://arxiv.org/abs/2405.21060>).
//!
//! ```text
//! y = a ⊙ ln(1 + e^(x + b))            dx = g ⊙ a ⊙ σ(x + b),   db = Σ dx,   da = Σ g ⊙ ln(1 + e^(x + b))
//! ```
//!
//! Computed as max(z, 0) + ln(1 + e^(−|z|)), which neither overflows nor loses small results.

mod cpu;
pub mod reference;

pub(crate) use cpu::ln_1_plus;

use candle_core::{D, Result, Tensor, bail};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened_all};

/// Terms of the series of artanh, the last of which is below 10⁻¹⁶ of the sum: 3⁻³⁴/35.
const TERMS: u32 = 17;

/// ln(1 + e^x), `(.., width)`
///
/// # Errors
/// If an operation fails.
pub fn softplus(x: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    let zeros = Tensor::zeros(width, x.dtype(), x.device())?;
    scaled_softplus(&x.contiguous()?, &zeros, &zeros.ones_like()?)
}

/// ln σ(x) = −ln(1 + e^(−x)), `(.., width)`
///
/// # Errors
/// If an operation fails.
pub fn log_sigmoid(x: &Tensor) -> Result<Tensor> {
    softplus(&x.neg()?)?.neg()
}

/// `x (.., width)`, `bias (width)`, `scale (width)` → `(.., width)`
///
/// # Errors
/// If shapes do not match.
pub fn scaled_softplus(x: &Tensor, bias: &Tensor, scale: &Tensor) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    if [bias, scale].iter().any(|parameter| parameter.dims() != [width]) {
        bail!(
            "a softplus of {:?} with a bias of {:?} and a scale of {:?}: expected (.., width), (width), (width)",
            x.shape(),
            bias.shape(),
            scale.shape()
        )
    }
    dispatch!(match [x, bias, scale] {
        Cpu(T) => {
            let inputs = [x, bias, scale];
            fused("softplus", inputs, x.shape(), Saved::Inputs, |[x, bias, scale]: [&[T]; 3]| {
                let y = cpu::forward(x, bias, scale);
                (y, |[x, bias, scale], _, g| cpu::backward(x, bias, scale, g))
            })
        }
        Cuda | Reference => widened_all([x, bias, scale], |[x, bias, scale]| {
            reference::scaled_softplus(x, bias, scale)
        }),
    })
}
