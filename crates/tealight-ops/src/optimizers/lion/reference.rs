//! Reference implementation in plain tensor operations.

use candle_core::{Result, Tensor, Var};

use super::Hyper;
use crate::optimizers::update::{store, wide};

/// One update. All operands have the shape of the parameter.
pub fn step(parameter: &Var, gradient: &Tensor, momentum: &Var, hyper: &Hyper) -> Result<()> {
    let Hyper { lr, beta1, beta2, weight_decay } = *hyper;
    let (theta, gradient, m) = (wide(parameter)?, wide(gradient)?, wide(momentum)?);
    let c = ((&m * beta1)? + (&gradient * (1. - beta1))?)?;
    let theta = ((theta * (1. - lr * weight_decay))? - (c.sign()? * lr)?)?;
    let m = ((m * beta2)? + (gradient * (1. - beta2))?)?;
    store(parameter, &theta)?;
    store(momentum, &m)
}
