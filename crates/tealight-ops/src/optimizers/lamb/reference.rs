//! Reference implementation in plain tensor operations.

use candle_core::{DType, Result, Tensor};

use super::{Hyper, Slot};
use crate::optimizers::update::{averaged, store, wide};

/// Update number `step`, counted from 1, of `slot`.
pub fn step(slot: &Slot<'_>, step: u64) -> Result<()> {
    let Slot { parameter, gradient, first_moment, second_moment, hyper } = *slot;
    let Hyper { beta1, beta2, epsilon, weight_decay, .. } = hyper;
    let (theta, gradient) = (wide(parameter)?, wide(gradient)?);
    let m = averaged(first_moment, &gradient, beta1)?;
    let v = averaged(second_moment, &gradient.sqr()?, beta2)?;

    let [first, second] = hyper.corrections(step);
    let adam = ((&m * first)? / ((v.sqrt()? * second)? + epsilon)?)?;
    let update = (adam + (&theta * weight_decay)?)?;
    let squared = |x: &Tensor| x.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>();
    let step_size = hyper.step_size([squared(&theta)?, squared(&update)?]);
    let theta = (theta - (update * step_size)?)?;

    store(parameter, &theta)
}
