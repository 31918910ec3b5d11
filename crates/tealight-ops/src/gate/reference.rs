//! The definition, in differentiable tensor operations.

use candle_core::{Result, Tensor};

use crate::activation::{Function, reference};

/// See [`gated`](super::gated).
pub fn gated(function: Function, x: &Tensor, v: &Tensor) -> Result<Tensor> {
    let gate = match function {
        Function::Relu => reference::relu(x),
        Function::Gelu => reference::gelu(x),
        Function::GeluTanh => reference::gelu_tanh(x),
        Function::Silu => reference::silu(x),
        Function::Sigmoid => reference::sigmoid(x),
    };
    gate?.broadcast_mul(v)
}
