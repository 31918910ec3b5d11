//! Reference implementation in plain tensor operations.

use candle_core::Result;

use super::{Hyper, Slot};
use crate::optimizers::update::{store, wide};

/// Update number `step`, counted from 1, of `slot`.
pub fn step(slot: &Slot<'_>, step: u64) -> Result<()> {
    let Slot { parameter, gradient, momentum_buffer, hyper } = *slot;
    let Hyper { lr, momentum, nesterov, weight_decay } = hyper;
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
