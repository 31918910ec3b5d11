//! Softmax over the last dimension, safe for scores of any size.
//!
//! ```text
//! softmax(x)ᵢ     = exp(xᵢ − max x) / Σⱼ exp(xⱼ − max x)
//! log_softmax(x)ᵢ = xᵢ − max x − ln Σⱼ exp(xⱼ − max x)
//!
//! dx = y ⊙ (g − Σⱼ yⱼ gⱼ)       of y = softmax(x)
//! dx = g − exp(y) Σⱼ gⱼ         of y = log_softmax(x)
//! ```
//!
//! Subtracting the maximum (Goodfellow et al. 2016, §4.1) keeps every exponential at most 1, so
//! rows with ±200 are as good as any. A row that is −∞ throughout, which is what a mask makes of a
//! sequence of padding, has no maximum to subtract. Its softmax is *defined* as zeros, with a
//! gradient of zero; its log-softmax stays −∞. (`torch` gives NaN, which one padded example then
//! spreads over the batch.)

mod cpu;
mod cuda;
pub mod reference;

use std::marker::PhantomData;

use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Tensor};

pub(crate) use cpu::{by_rows, exponentials, softmax_backward};

use crate::autograd::graph::apply1;
use crate::backend::buffer::{View, slice, stored, tensor};
use crate::backend::choice::{Backend, widened};
use crate::backend::element::Element;

/// `x (.., width)` → `(.., width)`: from 0 to 1, and of sum 1 over the last dimension. Zeros
/// occur: exp underflows, in f32 where a score is about 100 below the largest.
///
/// A row that is −∞ throughout gives zeros and has a gradient of zero.
///
/// # Errors
/// If `x` is a scalar.
pub fn softmax(x: &Tensor) -> Result<Tensor> {
    match Backend::of(&[x]) {
        Backend::F32 => apply1(&x.contiguous()?, Softmax::<f32>::over(x)?),
        Backend::F64 => apply1(&x.contiguous()?, Softmax::<f64>::over(x)?),
        Backend::Cuda => cuda::softmax(x, cuda::Of::Weights),
        Backend::Reference => widened(x, reference::softmax),
    }
}

/// `x (.., width)` → `(.., width)`: the logarithm of [`softmax`], accurate where that underflows.
///
/// A row that is −∞ throughout stays −∞.
///
/// # Errors
/// If `x` is a scalar.
pub fn log_softmax(x: &Tensor) -> Result<Tensor> {
    match Backend::of(&[x]) {
        Backend::F32 => apply1(&x.contiguous()?, LogSoftmax::<f32>::over(x)?),
        Backend::F64 => apply1(&x.contiguous()?, LogSoftmax::<f64>::over(x)?),
        Backend::Cuda => cuda::softmax(x, cuda::Of::Logarithms),
        Backend::Reference => widened(x, reference::log_softmax),
    }
}

struct Softmax<T> {
    width: usize,
    element: PhantomData<T>,
}

impl<T> Softmax<T> {
    fn over(x: &Tensor) -> Result<Self> {
        Ok(Self { width: x.dim(D::Minus1)?, element: PhantomData })
    }
}

impl<T: Element> CustomOp1 for Softmax<T> {
    fn name(&self) -> &'static str {
        "softmax"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok(stored(cpu::softmax::<T>(slice(x, layout)?, self.width), layout.shape()))
    }

    fn bwd(&self, _: &Tensor, y: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let gradient = gradient.contiguous()?;
        let (y_elements, gradient) = (View::<T>::of(y)?, View::of(&gradient)?);
        let dx = cpu::softmax_backward(&y_elements, &gradient, self.width);
        tensor(dx, y.shape()).map(Some)
    }
}

struct LogSoftmax<T> {
    width: usize,
    element: PhantomData<T>,
}

impl<T> LogSoftmax<T> {
    fn over(x: &Tensor) -> Result<Self> {
        Ok(Self { width: x.dim(D::Minus1)?, element: PhantomData })
    }
}

impl<T: Element> CustomOp1 for LogSoftmax<T> {
    fn name(&self) -> &'static str {
        "log-softmax"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok(stored(cpu::log_softmax::<T>(slice(x, layout)?, self.width), layout.shape()))
    }

    fn bwd(&self, _: &Tensor, y: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let gradient = gradient.contiguous()?;
        let (y_elements, gradient) = (View::<T>::of(y)?, View::of(&gradient)?);
        let dx = cpu::log_softmax_backward(&y_elements, &gradient, self.width);
        tensor(dx, y.shape()).map(Some)
    }
}
