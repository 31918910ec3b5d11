//! The definition, in plain tensor operations.

use candle_core::{DType, Result, Tensor, Var};

use super::Hyper;

/// One update; every operand has the parameter's shape.
pub fn step(parameter: &Var, gradient: &Tensor, momentum: &Var, hyper: &Hyper) -> Result<()> {
    let Hyper { lr, beta1, beta2, weight_decay } = *hyper;
    let wide = |x: &Tensor| match x.dtype() {
        DType::F64 => Ok(x.detach()),
        _ => x.detach().to_dtype(DType::F32),
    };
    let (theta, gradient, m) = (wide(parameter)?, wide(gradient)?, wide(momentum)?);
    let c = ((&m * beta1)? + (&gradient * (1. - beta1))?)?;
    let theta = ((theta * (1. - lr * weight_decay))? - (c.sign()? * lr)?)?;
    let m = ((m * beta2)? + (gradient * (1. - beta2))?)?;
    parameter.set(&theta.to_dtype(parameter.dtype())?)?;
    momentum.set(&m.to_dtype(momentum.dtype())?)
}
