//! The definition, in plain tensor operations.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use candle_core::{Result, Tensor};

use super::Function;

/// φ(x)
pub fn activation(function: Function, x: &Tensor) -> Result<Tensor> {
    match function {
        Function::Relu => relu(x),
        Function::Gelu => gelu(x),
        Function::GeluTanh => gelu_tanh(x),
        Function::Silu => silu(x),
        Function::Sigmoid => sigmoid(x),
    }
}

/// max(x, 0)
pub fn relu(x: &Tensor) -> Result<Tensor> {
    // Candle's maximum would pass half of the gradient at x = 0.
    x.le(0.)?.where_cond(&x.zeros_like()?, x)
}

/// 1 / (1 + e⁻ˣ), which is eˣ / (1 + eˣ)
pub fn sigmoid(x: &Tensor) -> Result<Tensor> {
    // Uses the form whose exponential is at most 1: the gradient of one that overflows would be 0 · ∞, NaN.
    let is_negative = x.lt(0.)?;
    let decayed = is_negative.where_cond(x, &x.neg()?)?.exp()?; // e^−|x|
    let upper = (&decayed + 1.)?.recip()?;
    is_negative.where_cond(&(decayed * &upper)?, &upper)
}

/// x σ(x)
pub fn silu(x: &Tensor) -> Result<Tensor> {
    x * sigmoid(x)?
}

/// x (1 + erf(x / √2)) / 2
pub fn gelu(x: &Tensor) -> Result<Tensor> {
    let cdf = (((x * FRAC_1_SQRT_2)?.erf()? + 1.)? * 0.5)?;
    x * cdf
}

/// x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2
pub fn gelu_tanh(x: &Tensor) -> Result<Tensor> {
    let cubic = (x + (x.powf(3.)? * 0.044_715)?)?;
    let tanh = (cubic * (FRAC_2_SQRT_PI * FRAC_1_SQRT_2))?.tanh()?;
    x * ((tanh + 1.)? * 0.5)?
}
