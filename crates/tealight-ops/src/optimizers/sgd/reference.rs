//! Reference implementation in plain tensor operations.

use candle_core::{Result, Tensor, Var};

use super::Hyper;
use crate::optimizers::update::{store, wide};

/// One update. All operands have the shape of the parameter.
pub fn step(
    parameter: &Var,
    gradient: &Tensor,
    momentum_buffer: &Var,
    step: u64,
    hyper: &Hyper,
) -> Result<()> {
    let Hyper { lr, momentum, nesterov, weight_decay } = *hyper;
    let (theta, gradient) = (wide(parameter)?, wide(gradient)?);
    let buffer = match step {
        0 | 1 => gradient.clone(),
        _ => ((wide(momentum_buffer)? * momentum)? + &gradient)?,
    };
    let direction = if nesterov { (gradient + (&buffer * momentum)?)? } else { buffer.clone() };
    let theta = ((theta * (1. - lr * weight_decay))? - (direction * lr)?)?;
    store(parameter, &theta)?;
    store(momentum_buffer, &buffer)
}
