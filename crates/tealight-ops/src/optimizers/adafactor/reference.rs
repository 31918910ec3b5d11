//! Reference implementation in plain tensor operations.

use candle_core::{D, DType, Result, Tensor};

use super::{SecondMoment, Slot};
use crate::optimizers::update::{averaged, store, wide};

/// Update number `step`, counted from 1, of `slot`.
pub fn step(slot: &Slot<'_>, step: u64) -> Result<()> {
    let Slot { parameter, gradient, second_moment, hyper } = *slot;
    let (theta, gradient) = (wide(parameter)?, wide(gradient)?);
    let squared = (gradient.sqr()? + hyper.epsilon1)?;
    let beta = hyper.beta(step);
    let update = match second_moment {
        SecondMoment::Full(all) => (gradient / averaged(all, &squared, beta)?.sqrt()?)?,
        SecondMoment::Factored { rows, columns } => {
            let rows = averaged(rows, &squared.sum(D::Minus1)?, beta)?;
            let columns = averaged(columns, &squared.sum(D::Minus2)?, beta)?;
            // R / 1ᵀR first: in f32, R C underflows to 0 if both are of the order of ε₁.
            let rows = rows.broadcast_div(&rows.sum_keepdim(D::Minus1)?)?;
            gradient
                .broadcast_div(&rows.sqrt()?.unsqueeze(D::Minus1)?)?
                .broadcast_div(&columns.sqrt()?.unsqueeze(D::Minus2)?)?
        }
    };
    let step_size = hyper.step_size(rms(&theta)?);
    let clipped = (&update * (step_size / hyper.clipping(rms(&update)?)))?;
    let theta = ((theta * (1. - step_size * hyper.weight_decay))? - clipped)?;
    store(parameter, &theta)
}

fn rms(x: &Tensor) -> Result<f64> {
    let squares = x.to_dtype(DType::F64)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
    Ok((squares / x.elem_count() as f64).sqrt())
}
