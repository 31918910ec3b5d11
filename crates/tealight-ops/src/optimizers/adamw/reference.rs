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
    let Hyper { lr, beta1, beta2, epsilon, weight_decay, gradient_scale } = *hyper;
    let wide = |x: &Tensor| match x.dtype() {
        DType::F64 => Ok(x.detach()),
        _ => x.detach().to_dtype(DType::F32),
    };
    let (theta, gradient) = (wide(parameter)?, (wide(gradient)? * gradient_scale)?);
    let m = ((wide(first_moment)? * beta1)? + (&gradient * (1. - beta1))?)?;
    let v = ((wide(second_moment)? * beta2)? + (gradient.sqr()? * (1. - beta2))?)?;

    let m_hat = (&m / (1. - beta1.powf(step as f64)))?;
    let v_hat = (&v / (1. - beta2.powf(step as f64)))?;
    let update = ((m_hat / (v_hat.sqrt()? + epsilon)?)? * lr)?;
    let theta = ((theta * (1. - lr * weight_decay))? - update)?;

    parameter.set(&theta.to_dtype(parameter.dtype())?)?;
    first_moment.set(&m.to_dtype(first_moment.dtype())?)?;
    second_moment.set(&v.to_dtype(second_moment.dtype())?)
}
