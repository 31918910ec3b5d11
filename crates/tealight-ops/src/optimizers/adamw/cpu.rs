//! The fused loop: one pass over parameter, gradient and moments.

use super::Hyper;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};

pub(super) fn step<T: Element>(
    [parameter, first_moment, second_moment]: [&mut [T]; 3],
    gradient: &[T],
    step: u64,
    hyper: &Hyper,
) {
    let Hyper { lr, beta1, beta2, epsilon, weight_decay, gradient_scale } = *hyper;
    let correction = |beta: f64| 1. - beta.powf(step as f64);
    let [gradient_scale, epsilon] = [gradient_scale, epsilon].map(T::from_f64);
    let keep = T::from_f64(1. - lr * weight_decay);
    let step_size = T::from_f64(lr / correction(beta1));
    let second_correction = T::from_f64(1. / correction(beta2).sqrt());
    let [beta1, one_minus_beta1] = [beta1, 1. - beta1].map(T::from_f64);
    let [beta2, one_minus_beta2] = [beta2, 1. - beta2].map(T::from_f64);

    let len = block_len(1);
    let moments = first_moment.chunks_mut(len).zip(second_moment.chunks_mut(len));
    run::<T, _, _>(
        gradient.len(),
        parameter.chunks_mut(len).zip(gradient.chunks(len)).zip(moments),
        #[inline(always)]
        |((parameter, gradient), (first_moment, second_moment))| {
            let moments = first_moment.iter_mut().zip(second_moment);
            for ((theta, &g), (m, v)) in parameter.iter_mut().zip(gradient).zip(moments) {
                let g = g * gradient_scale;
                *m = beta1 * *m + one_minus_beta1 * g;
                *v = beta2 * *v + one_minus_beta2 * g * g;
                let denominator = v.sqrt() * second_correction + epsilon;
                *theta = *theta * keep - step_size * *m / denominator;
            }
        },
    );
}
