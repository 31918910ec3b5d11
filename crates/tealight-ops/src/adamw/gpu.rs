//! The kernel: a thread for each element.

use candle_core::{Result, Tensor};

use super::Hyper;
use crate::gpu::Launch;

pub(super) fn step(
    [parameter, first_moment, second_moment]: [&Tensor; 3],
    gradient: &Tensor,
    step: u64,
    hyper: &Hyper,
) -> Result<()> {
    let Hyper { lr, beta1, beta2, epsilon, weight_decay } = *hyper;
    let gradient = gradient.contiguous()?;
    let correction = |beta: f64| 1. - beta.powf(step as f64);
    Launch::new("optimizers", "adamw", parameter)?
        .over(parameter.elem_count())
        .update(parameter)?
        .read(&gradient)?
        .update(first_moment)?
        .update(second_moment)?
        .size(parameter.elem_count())
        .number(lr)
        .number(beta1)
        .number(beta2)
        .number(epsilon)
        .number(weight_decay)
        .number(correction(beta1))
        .number(correction(beta2))
        .run()
}
