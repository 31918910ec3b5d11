//! Reference implementation in plain tensor operations.

use candle_core::{Result, Tensor, Var};

use super::Hyper;
use crate::optimizers::update::{averaged, store, wide};

/// One update. All operands have the shape of the parameter.
pub fn step(
    parameter: &Var,
    gradient: &Tensor,
    first_moment: &Var,
    second_moment: &Var,
    step: u64,
    hyper: &Hyper,
) -> Result<()> {
    let Hyper { lr, beta1, beta2, epsilon, weight_decay, gradient_scale } = *hyper;
    let (theta, gradient) = (wide(parameter)?, (wide(gradient)? * gradient_scale)?);
    let m = averaged(first_moment, &gradient, beta1)?;
    let v = averaged(second_moment, &gradient.sqr()?, beta2)?;

    let m_hat = (&m / (1. - beta1.powf(step as f64)))?;
    let v_hat = (&v / (1. - beta2.powf(step as f64)))?;
    let update = ((m_hat / (v_hat.sqrt()? + epsilon)?)? * lr)?;
    let theta = ((theta * (1. - lr * weight_decay))? - update)?;

    store(parameter, &theta)
}
