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
//! The variance is taken in a second pass, after the mean: E(x²) − μ² cancels. μ and r of every row
//! are kept for the backward. ε inside the root is as in `torch`; the papers leave it out.

mod cpu;
mod cuda;
pub mod reference;

use candle_core::{D, Result, Tensor, bail};

use crate::autograd::graph::{Operation, record};
use crate::backend::buffer::{View, stored, tensor};
use crate::backend::choice::{Backend, widened};
use crate::backend::element::Element;
use crate::backend::profile::{Pass, timed};
use cpu::{Centre, Row, Settings};

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
            bail!("a norm over {:?} with a parameter of {:?}", x.shape(), parameter.shape())
        }
    }
    let operands = [Some(x), Some(weight), bias].into_iter().flatten().collect::<Vec<_>>();
    match (Backend::of(&operands), centre) {
        (Backend::F32, _) => fused::<f32>(x, weight, bias, centre, eps),
        (Backend::F64, _) => fused::<f64>(x, weight, bias, centre, eps),
        (Backend::Cuda, _) => cuda::normalise(x, weight, bias, centre, eps),
        (Backend::Reference, Centre::Mean) => {
            widened(x, |x| reference::layer_norm(x, weight, bias, eps))
        }
        (Backend::Reference, Centre::Zero) => widened(x, |x| reference::rms_norm(x, weight, eps)),
    }
}

fn fused<T: Element>(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    centre: Centre,
    eps: f64,
) -> Result<Tensor> {
    let settings = Settings { centre, eps: T::from_f64(eps) };
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    let bias = bias.map(Tensor::contiguous).transpose()?;
    let (y, rows) = timed(NAME, Pass::Forward, || {
        let bias = bias.as_ref().map(View::of).transpose()?;
        Result::Ok(cpu::forward(&settings, &View::of(&x)?, &View::of(&weight)?, bias.as_deref()))
    })?;
    let inputs: Vec<_> = [Some(&x), Some(&weight), bias.as_ref()].into_iter().flatten().collect();
    record(Norm { centre, rows }, &inputs, stored(y, x.shape()))
}

const NAME: &str = "norm";

struct Norm<T> {
    centre: Centre,
    rows: Vec<Row<T>>,
}

impl<T: Element> Operation for Norm<T> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads_output(&self) -> bool {
        false
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (x, weight) = (&inputs[0], &inputs[1]);
        let gradient = gradient.contiguous()?;
        let (dx, dweight, dbias) = cpu::backward::<T>(
            self.centre,
            &self.rows,
            &View::of(x)?,
            &View::of(weight)?,
            &View::of(&gradient)?,
        );
        let mut gradients =
            vec![Some(tensor(dx, x.shape())?), Some(tensor(dweight, weight.shape())?)];
        if let Some(bias) = inputs.get(2) {
            gradients.push(Some(tensor(dbias, bias.shape())?));
        }
        Ok(gradients)
    }
}
