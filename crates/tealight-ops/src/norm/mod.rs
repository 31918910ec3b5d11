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
//! The variance is taken in a second pass, after the mean: E(x²) − μ² cancels. The backward
//! computes μ and r again rather than keeping them. ε inside the root is as in `torch`; the papers
//! leave it out.

mod cpu;
pub mod reference;

use candle_core::{CpuStorage, CustomOp2, CustomOp3, D, Layout, Result, Shape, Tensor, bail};

use crate::buffer::{View, slice, stored, tensor};
use crate::element::Element;
use crate::graph::{apply2, apply3};
use crate::path::{Path, widened};
use cpu::Centre;

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
    match (Path::of(&operands), centre) {
        (Path::F32, _) => fused::<f32>(x, weight, bias, centre, eps),
        (Path::F64, _) => fused::<f64>(x, weight, bias, centre, eps),
        (Path::Reference, Centre::Mean) => {
            widened(x, |x| reference::layer_norm(x, weight, bias, eps))
        }
        (Path::Reference, Centre::Zero) => widened(x, |x| reference::rms_norm(x, weight, eps)),
    }
}

fn fused<T: Element>(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    centre: Centre,
    eps: f64,
) -> Result<Tensor> {
    let norm = Norm::<T> { centre, eps: T::from_f64(eps) };
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    match bias {
        Some(bias) => apply3(&x, &weight, &bias.contiguous()?, norm),
        None => apply2(&x, &weight, norm),
    }
}

struct Norm<T> {
    centre: Centre,
    eps: T,
}

impl<T: Element> Norm<T> {
    /// The gradients of x, weight and bias.
    fn backward(&self, x: &Tensor, weight: &Tensor, gradient: &Tensor) -> Result<[Tensor; 3]> {
        let gradient = gradient.contiguous()?;
        let (xs, weights, gradient) = (View::of(x)?, View::of(weight)?, View::of(&gradient)?);
        let (dx, dweight, dbias) = cpu::backward(self, &xs, &weights, &gradient);
        Ok([
            tensor(dx, x.shape())?,
            tensor(dweight, weight.shape())?,
            tensor(dbias, weight.shape())?,
        ])
    }
}

impl<T: Element> CustomOp2 for Norm<T> {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (slice(x, x_layout)?, slice(weight, weight_layout)?);
        Ok(stored(cpu::forward(self, x, weight, None), x_layout.shape()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, dweight, _] = self.backward(x, weight, gradient)?;
        Ok((Some(dx), Some(dweight)))
    }
}

impl<T: Element> CustomOp3 for Norm<T> {
    fn name(&self) -> &'static str {
        "norm"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weight: &CpuStorage,
        weight_layout: &Layout,
        bias: &CpuStorage,
        bias_layout: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let (x, weight) = (slice(x, x_layout)?, slice(weight, weight_layout)?);
        Ok(stored(cpu::forward(self, x, weight, Some(slice(bias, bias_layout)?)), x_layout.shape()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _: &Tensor,
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dx, dweight, dbias] = self.backward(x, weight, gradient)?;
        Ok((Some(dx), Some(dweight), Some(dbias)))
    }
}
