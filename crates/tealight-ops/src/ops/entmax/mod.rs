//! Sparsemax and 1.5-entmax over the last dimension: softmax with exact zeros.
//!
//! ```text
//! α-entmax(z) = argmax over p ∈ Δ of pᵀz + Hα(p),   Hα Tsallis' entropy
//!             = [(α − 1) z − τ]₊^(1/(α − 1)),  τ such that the sum is 1
//!
//! sparsemax(z) = [z − τ]₊                α = 2
//! entmax15(z)  = [z/2 − τ]₊²             α = 1.5
//!
//! dz = s ⊙ (g − Σⱼ sⱼ gⱼ / Σⱼ sⱼ),   sᵢ = pᵢ^(2 − α) where pᵢ > 0, else 0
//! ```
//!
//! Sparsemax is the Euclidean projection onto the simplex (Martins and Astudillo 2016,
//! <https://arxiv.org/abs/1602.02068>, Algorithm 1 and eq. (14)); 1.5-entmax lies half way between
//! it and softmax (Peters, Niculae and Martins 2019, <https://arxiv.org/abs/1905.05702>). Both are
//! continuous. Sparsemax has kinks, where an element enters the support; there the derivative is
//! that of the smaller support. The fused loops drop what cannot be in the support, pass by pass,
//! until what is left is the support or is sorted (Martins' Algorithm 1, Peters' Algorithm 2). The
//! definition finds τ by bisection (Peters' Algorithm 1), which runs on every device.
//!
//! An element that is −∞ has no part in the row; a row that is −∞ throughout gives zeros and has a
//! gradient of zero. τ is that of z − max z, so that scores of any size are as good as small ones.
//!
//! Cost: a few passes over a row; at most O(width log width).

mod cpu;
pub mod reference;

use std::marker::PhantomData;

use candle_core::{CpuStorage, CustomOp1, D, Layout, Result, Shape, Tensor};

use crate::autograd::graph::apply1;
use crate::backend::buffer::{View, slice, stored, tensor};
use crate::backend::choice::{Backend, widened};
use crate::backend::element::Element;

/// `x (.., width)` → `(.., width)`: the point of the simplex that is nearest to each row.
///
/// # Errors
/// If `x` is a scalar.
pub fn sparsemax(x: &Tensor) -> Result<Tensor> {
    entmax(x, Alpha::Two, reference::sparsemax)
}

/// `x (.., width)` → `(.., width)`: entmax of α = 1.5, with fewer zeros than [`sparsemax`].
///
/// # Errors
/// If `x` is a scalar.
pub fn entmax15(x: &Tensor) -> Result<Tensor> {
    entmax(x, Alpha::OneAndAHalf, reference::entmax15)
}

/// The α for which τ has a closed form, once the support is known.
#[derive(Clone, Copy, Debug)]
enum Alpha {
    /// Sparsemax.
    Two,
    /// 1.5-entmax.
    OneAndAHalf,
}

fn entmax(x: &Tensor, alpha: Alpha, reference: fn(&Tensor) -> Result<Tensor>) -> Result<Tensor> {
    let width = x.dim(D::Minus1)?;
    match Backend::of(&[x]) {
        Backend::F32 => apply1(&x.contiguous()?, Entmax::<f32>::new(alpha, width)),
        Backend::F64 => apply1(&x.contiguous()?, Entmax::<f64>::new(alpha, width)),
        Backend::Cuda | Backend::Reference => widened(x, reference),
    }
}

struct Entmax<T> {
    alpha: Alpha,
    width: usize,
    element: PhantomData<T>,
}

impl<T> Entmax<T> {
    fn new(alpha: Alpha, width: usize) -> Self {
        Self { alpha, width, element: PhantomData }
    }
}

impl<T: Element> CustomOp1 for Entmax<T> {
    fn name(&self) -> &'static str {
        match self.alpha {
            Alpha::Two => "sparsemax",
            Alpha::OneAndAHalf => "entmax15",
        }
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let x = slice::<T>(x, layout)?;
        let y = match self.alpha {
            Alpha::Two => cpu::sparsemax(x, self.width),
            Alpha::OneAndAHalf => cpu::entmax15(x, self.width),
        };
        Ok(stored(y, layout.shape()))
    }

    fn bwd(&self, _: &Tensor, y: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let gradient = gradient.contiguous()?;
        let (y_elements, gradient) = (View::<T>::of(y)?, View::of(&gradient)?);
        let dx = match self.alpha {
            Alpha::Two => cpu::sparsemax_backward(&y_elements, &gradient, self.width),
            Alpha::OneAndAHalf => cpu::entmax15_backward(&y_elements, &gradient, self.width),
        };
        tensor(dx, y.shape()).map(Some)
    }
}
