//! The definition, in plain tensor operations.

use candle_core::{DType, Result, Tensor, Var};

use super::Hyper;

/// One update; every operand has the parameter's shape.
pub fn step(
    parameter: &Var,
    gradient: &Tensor,
    momentum_buffer: &Var,
    step: u64,
    hyper: &Hyper,
) -> Result<()> {
    let Hyper { lr, momentum, nesterov, weight_decay } = *hyper;
    let wide = |x: &Tensor| match x.dtype() {
        DType::F64 => Ok(x.detach()),
        _ => x.detach().to_dtype(DType::F32),
    };
    let (theta, gradient) = (wide(parameter)?, wide(gradient)?);
    let buffer = match step {
        0 | 1 => gradient.clone(),
        _ => ((wide(momentum_buffer)? * momentum)? + &gradient)?,
    };
    let direction = if nesterov { (gradient + (&buffer * momentum)?)? } else { buffer.clone() };
    let theta = ((theta * (1. - lr * weight_decay))? - (direction * lr)?)?;
    parameter.set(&theta.to_dtype(parameter.dtype())?)?;
    momentum_buffer.set(&buffer.to_dtype(momentum_buffer.dtype())?)
}
