//! The fused loop: one pass over parameter, gradient and moments.

use super::Hyper;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};

/// The constants of an update, computed in f64.
pub(super) struct Factors<T> {
    gradient_scale: T,
    keep: T,
    beta1: T,
    one_minus_beta1: T,
    beta2: T,
    one_minus_beta2: T,
    step_size: T,
    second_correction: T,
    epsilon: T,
}

impl<T: Element> Factors<T> {
    pub(super) fn at(step: u64, hyper: &Hyper) -> Self {
        let Hyper { lr, beta1, beta2, epsilon, weight_decay, gradient_scale } = *hyper;
        let correction = |beta: f64| 1. - beta.powf(step as f64);
        Self {
            gradient_scale: T::from_f64(gradient_scale),
            keep: T::from_f64(1. - lr * weight_decay),
            beta1: T::from_f64(beta1),
            one_minus_beta1: T::from_f64(1. - beta1),
            beta2: T::from_f64(beta2),
            one_minus_beta2: T::from_f64(1. - beta2),
            step_size: T::from_f64(lr / correction(beta1)),
            second_correction: T::from_f64(1. / correction(beta2).sqrt()),
            epsilon: T::from_f64(epsilon),
        }
    }
}

pub(super) fn step<T: Element>(
    parameter: &mut [T],
    gradient: &[T],
    first_moment: &mut [T],
    second_moment: &mut [T],
    factors: &Factors<T>,
) {
    let n = parameter.len();
    let len = block_len(1);
    let moments = first_moment.chunks_mut(len).zip(second_moment.chunks_mut(len));
    run(
        n,
        parameter.chunks_mut(len).zip(gradient.chunks(len)).zip(moments),
        #[inline(always)]
        |((parameter, gradient), (first_moment, second_moment))| {
            let moments = first_moment.iter_mut().zip(second_moment);
            for ((theta, &g), (m, v)) in parameter.iter_mut().zip(gradient).zip(moments) {
                let g = g * factors.gradient_scale;
                *m = factors.beta1 * *m + factors.one_minus_beta1 * g;
                *v = factors.beta2 * *v + factors.one_minus_beta2 * g * g;
                let denominator = v.sqrt() * factors.second_correction + factors.epsilon;
                *theta = *theta * factors.keep - factors.step_size * *m / denominator;
            }
        },
    );
}
