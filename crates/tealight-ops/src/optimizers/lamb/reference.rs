//! The definition, in plain tensor operations.

use candle_core::{DType, Result, Tensor, Var};

use super::Hyper;

/// One update; every operand has the parameter's shape.
pub fn step(
    parameter: &Var,
    gradient: &Tensor,
    first_moment: &Var,
    second_moment: &Var,
    step: u64,
    hyper: &Hyper,
) -> Result<()> {
    let Hyper { beta1, beta2, epsilon, weight_decay, .. } = *hyper;
    let wide = |x: &Tensor| match x.dtype() {
        DType::F64 => Ok(x.detach()),
        _ => x.detach().to_dtype(DType::F32),
    };
    let (theta, gradient) = (wide(parameter)?, wide(gradient)?);
    let m = ((wide(first_moment)? * beta1)? + (&gradient * (1. - beta1))?)?;
    let v = ((wide(second_moment)? * beta2)? + (gradient.sqr()? * (1. - beta2))?)?;

    let [first, second] = hyper.corrections(step);
    let adam = ((&m * first)? / ((v.sqrt()? * second)? + epsilon)?)?;
    let update = (adam + (&theta * weight_decay)?)?;
    let squared = |x: &Tensor| x.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>();
    let step_size = hyper.step_size([squared(&theta)?, squared(&update)?]);
    let theta = (theta - (update * step_size)?)?;

    parameter.set(&theta.to_dtype(parameter.dtype())?)?;
    first_moment.set(&m.to_dtype(first_moment.dtype())?)?;
    second_moment.set(&v.to_dtype(second_moment.dtype())?)
}
