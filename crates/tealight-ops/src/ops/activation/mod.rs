//! The activations of feed-forward layers, element by element.
//!
//! ```text
//! relu(x)      = max(x, 0)                                    Nair and Hinton 2010
//! sigmoid(x)   = σ(x) = 1 / (1 + e⁻ˣ)                         Dauphin et al. 2016, as a gate
//! silu(x)      = x σ(x)                                       Elfwing et al. 2017
//! gelu(x)      = x Φ(x) = x (1 + erf(x / √2)) / 2             Hendrycks and Gimpel 2016
//! gelu_tanh(x) = x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2   the same, approximately
//!
//! relu'(x) = 1 if x > 0, else 0            silu'(x) = σ(x) (1 + x (1 − σ(x)))
//! gelu'(x) = Φ(x) + x φ(x)                 sigmoid'(x) = σ(x) (1 − σ(x))
//!                                          (1 + tanh u) / 2 = σ(2u), so gelu_tanh is x σ(2u)
//! ```
//!
//! Sigmoid: <https://arxiv.org/abs/1612.08083>. SiLU: <https://arxiv.org/abs/1702.03118>. GELU:
//! <https://arxiv.org/abs/1606.08415>.
//!
//! In f32, values are within 2·10⁻⁷·max(1, |x|) of the exact ones and derivatives within 5·10⁻⁷; in
//! f64, both are within 10⁻¹⁴ or so.

mod cpu;
mod cuda;
pub mod reference;

use std::marker::PhantomData;

use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};

use crate::autograd::graph::apply1;
use crate::backend::buffer::{View, slice, stored, tensor};
use crate::backend::choice::{Backend, widened};
use crate::backend::element::Element;
pub(crate) use cpu::{
    Elementwise, Gelu, GeluTanh, Relu, Sigmoid, Silu, activate, activate_backward,
};

/// An activation as a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    /// See [`relu`].
    Relu,
    /// See [`gelu`].
    Gelu,
    /// See [`gelu_tanh`].
    GeluTanh,
    /// See [`silu`].
    Silu,
    /// See [`sigmoid`].
    Sigmoid,
}

impl Function {
    /// Any shape → the same shape.
    pub fn forward(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Relu => relu(x),
            Self::Gelu => gelu(x),
            Self::GeluTanh => gelu_tanh(x),
            Self::Silu => silu(x),
            Self::Sigmoid => sigmoid(x),
        }
    }
}

/// The coefficient of x³ in the tanh approximation.
const CUBIC: f64 = 0.044_715;

/// max(x, 0), of any shape. The derivative at 0 is 0, as in `torch`.
pub fn relu(x: &Tensor) -> Result<Tensor> {
    apply::<Relu>(x, reference::relu)
}

/// σ(x) = 1 / (1 + e⁻ˣ), of any shape.
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    apply::<Sigmoid>(x, reference::sigmoid)
}

/// x σ(x), also known as swish, of any shape.
pub fn silu(x: &Tensor) -> Result<Tensor> {
    apply::<Silu>(x, reference::silu)
}

/// x Φ(x), of any shape: the exact form, with the error function.
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    apply::<Gelu>(x, reference::gelu)
}

/// The tanh approximation of [`gelu`], of any shape: the `gelu_new` of GPT-2.
pub fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    apply::<GeluTanh>(x, reference::gelu_tanh)
}

fn apply<A: Elementwise>(
    x: &Tensor,
    definition: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    match Backend::of(&[x]) {
        Backend::F32 => apply1(&x.contiguous()?, Activation::<f32, A>(PhantomData)),
        Backend::F64 => apply1(&x.contiguous()?, Activation::<f64, A>(PhantomData)),
        Backend::Cuda => cuda::activation(x, A::FUNCTION, A::NAME),
        Backend::Reference => widened(x, definition),
    }
}

struct Activation<T, A>(PhantomData<(T, A)>);

impl<T: Element, A: Elementwise> CustomOp1 for Activation<T, A> {
    fn name(&self) -> &'static str {
        A::NAME
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        Ok(stored(cpu::forward::<T, A>(slice(x, layout)?), layout.shape()))
    }

    fn bwd(&self, x: &Tensor, _: &Tensor, gradient: &Tensor) -> Result<Option<Tensor>> {
        let gradient = gradient.contiguous()?;
        let dx = cpu::backward::<T, A>(&View::of(x)?, &View::of(&gradient)?);
        tensor(dx, x.shape()).map(Some)
    }
}
