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
//! f64, both are within about 10⁻¹⁴.

mod cpu;
mod cuda;
pub mod reference;

use candle_core::{Result, Tensor};

use crate::autograd::graph::{Saved, fused};
use crate::backend::choice::{dispatch, widened};
pub(crate) use cpu::{
    Elementwise, Gelu, GeluTanh, Relu, Sigmoid, Silu, activate, activate_backward,
};

/// An activation function. `functions.cuh` has the same numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Function {
    /// See [`relu`].
    Relu = 0,
    /// See [`gelu`].
    Gelu = 1,
    /// See [`gelu_tanh`].
    GeluTanh = 2,
    /// See [`silu`].
    Silu = 3,
    /// See [`sigmoid`].
    Sigmoid = 4,
}

impl Function {
    /// Any shape → the same shape.
    pub fn forward(self, x: &Tensor) -> Result<Tensor> {
        with_activation!(self, A => apply::<A>(x))
    }
}

/// Runs an expression that is generic in the [`Elementwise`] of a [`Function`].
macro_rules! with_activation {
    ($function:expr, $A:ident => $run:expr) => {
        with_activation!($function, $A => $run; Relu Gelu GeluTanh Silu Sigmoid)
    };
    ($function:expr, $A:ident => $run:expr; $($kind:ident)+) => {
        match $function {
            $($crate::ops::activation::Function::$kind => {
                type $A = $crate::ops::activation::$kind;
                $run
            })+
        }
    };
}
pub(crate) use with_activation;

/// The coefficient of x³ in the tanh approximation.
const CUBIC: f64 = 0.044_715;

/// max(x, 0), of any shape. The derivative at 0 is 0, as in `torch`.
pub fn relu(x: &Tensor) -> Result<Tensor> {
    apply::<Relu>(x)
}

/// σ(x) = 1 / (1 + e⁻ˣ), of any shape.
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    apply::<Sigmoid>(x)
}

/// x σ(x), also known as swish, of any shape.
pub fn silu(x: &Tensor) -> Result<Tensor> {
    apply::<Silu>(x)
}

/// x Φ(x), of any shape: the exact form, with the error function.
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    apply::<Gelu>(x)
}

/// The tanh approximation of [`gelu`], of any shape: the `gelu_new` of GPT-2.
pub fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    apply::<GeluTanh>(x)
}

fn apply<A: Elementwise>(x: &Tensor) -> Result<Tensor> {
    dispatch!(match [x] {
        Cpu(T) => fused(A::NAME, [x], x.shape(), Saved::Inputs, |[x]| {
            (cpu::forward::<T, A>(x), |[x], _, g| [cpu::backward::<T, A>(x, g)])
        }),
        Cuda => cuda::activation(x, A::FUNCTION, A::NAME),
        Reference => widened(x, |x| reference::activation(A::FUNCTION, x)),
    })
}
