//! Reference implementation in plain tensor operations.

use candle_core::Result;

use super::{Hyper, Slot};
use crate::optimizers::update::{averaged, store, wide};

/// Update number `step`, counted from 1, of `slot`.
pub fn step(slot: &Slot<'_>, step: u64) -> Result<()> {
    let Slot { parameter, gradient, first_moment, second_moment, hyper } = *slot;
    let Hyper { lr, beta1, beta2, epsilon, weight_decay, gradient_scale } = hyper;
    let (theta, gradient) = (wide(parameter)?, (wide(gradient)? * gradient_scale)?);
    let m = averaged(first_moment, &gradient, beta1)?;
    let v = averaged(second_moment, &gradient.sqr()?, beta2)?;

    let m_hat = (&m / (1. - beta1.powf(step as f64)))?;
    let v_hat = (&v / (1. - beta2.powf(step as f64)))?;
    let update = ((m_hat / (v_hat.sqrt()? + epsilon)?)? * lr)?;
    let theta = ((theta * (1. - lr * weight_decay))? - update)?;

    store(parameter, &theta)
}
