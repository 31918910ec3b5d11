//! Reference implementation in plain tensor operations.

use candle_core::{DType, Result, Tensor, Var};

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
    let Hyper { beta1, beta2, epsilon, weight_decay, .. } = *hyper;
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
