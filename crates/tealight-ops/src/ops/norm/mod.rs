//! Layer normalisation (Ba et al. 2016, <https://arxiv.org/abs/1607.06450>) and root-mean-square
//! normalisation (Zhang and Sennrich 2019, <https://arxiv.org/abs/1910.07467>), over the last
//! dimension.
//!
//! ```text
//! layer_norm:  μ = mean(x),  x̂ = (x − μ) / √(mean((x − μ)²) + ε),  y = x̂ ⊙ weight + bias
//! rms_norm:    μ = 0,        x̂ = x / √(mean(x²) + ε),              y = x̂ ⊙ weight
//!
//! with r the reciprocal root and h = g ⊙ weight:
//! dx = r (h − mean(h) − x̂ mean(h ⊙ x̂))        without mean(h) for rms_norm, whose μ is constant
//! dweight = Σ g ⊙ x̂,   dbias = Σ g             over the rows
//! ```
//!
//! The variance is computed in a second pass after the mean, because E(x²) − μ² cancels. The backward
//! saves x, μ and r. ε stands inside the root as in `torch`; the papers have none.

mod cpu;
mod cuda;
pub mod reference;

use candle_core::{D, Result, Tensor, bail};

use crate::autograd::graph::{Saved, record_saving};
use crate::backend::buffer::{View, contiguous, gradients, stored};
use crate::backend::choice::{dispatch, widened};
use crate::backend::element::Element;
use crate::backend::profile::{Phase, timed};
use cpu::{Centre, Settings};

const NAME: &str = "norm";

/// `x (.., width)`, `weight (width)`, `bias (width)` → `(.., width)`
///
/// # Errors
/// If `weight` or `bias` is not as wide as the last dimension of `x`.
pub fn layer_norm(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, eps: f64) -> Result<Tensor> {
    normalise(x, weight, bias, Centre::Mean, eps)
}

/// `x (.., width)`, `weight (width)` → `(.., width)`
///
/// # Errors
/// If `weight` is not as wide as the last dimension of `x`.
pub fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    normalise(x, weight, None, Centre::Zero, eps)
}

fn normalise(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    centre: Centre,
    eps: f64,
) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    for parameter in [Some(weight), bias].into_iter().flatten() {
        if parameter.dims() != [width] {
            bail!(
                "a norm over {:?} with a parameter of {:?}: expected (.., width), (width)",
                x.shape(),
                parameter.shape()
            )
        }
    }
    let operands = [Some(x), Some(weight), bias].into_iter().flatten().collect::<Vec<_>>();
    dispatch!(match operands {
        Cpu(T) => on_cpu::<T>(&operands, centre, eps),
        Cuda => cuda::normalise(x, weight, bias, centre, eps),
        Reference => widened(x, |x| match centre {
            Centre::Mean => reference::layer_norm(x, weight, bias, eps),
            Centre::Zero => reference::rms_norm(x, weight, eps),
        }),
    })
}

/// `operands`: x, weight and perhaps bias.
fn on_cpu<T: Element>(operands: &[&Tensor], centre: Centre, eps: f64) -> Result<Tensor> {
    let settings = Settings { centre, eps: T::from_f64(eps) };
    let inputs = contiguous(operands)?;
    let (x, weight, bias) = (&inputs[0], &inputs[1], inputs.get(2));
    let (y, rows) = timed(NAME, Phase::Forward, || {
        let bias = bias.map(View::from_tensor).transpose()?;
        Result::Ok(cpu::forward(
            &settings,
            &View::from_tensor(x)?,
            &View::from_tensor(weight)?,
            bias.as_deref(),
        ))
    })?;
    let y = stored(y, x.shape());
    record_saving(NAME, &inputs, y, Saved::Inputs, move |inputs, _, gradient| {
        let (x, weight) = (View::<T>::from_tensor(&inputs[0])?, View::from_tensor(&inputs[1])?);
        let all = cpu::backward(centre, &rows, &x, &weight, &View::from_tensor(gradient)?);
        gradients(all.map(Some), inputs)
    })
}
