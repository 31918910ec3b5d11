//! The fused loops: a pass for moments, update and norms, and a pass for the parameter.

use super::Hyper;
use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run, squares};

pub(super) fn step<T: Element>(
    [parameter, first_moment, second_moment]: [&mut [T]; 3],
    gradient: &[T],
    step: u64,
    hyper: &Hyper,
) {
    let mut update = unwritten(parameter.len());
    let moments = [first_moment, second_moment];
    let norms = updates(&mut update, parameter, gradient, moments, step, hyper);
    let step_size = T::from_f64(hyper.step_size(norms));
    let len = block_len(1);
    run::<T, _, _>(
        parameter.len(),
        parameter.chunks_mut(len).zip(update.chunks(len)),
        #[inline(always)]
        |(parameter, update)| {
            for (theta, &u) in parameter.iter_mut().zip(update) {
                *theta -= step_size * u;
            }
        },
    );
}

/// Writes the moments and u; returns ‖θ‖² and ‖u‖².
fn updates<T: Element>(
    update: &mut [T],
    parameter: &[T],
    gradient: &[T],
    [first_moment, second_moment]: [&mut [T]; 2],
    step: u64,
    hyper: &Hyper,
) -> [f64; 2] {
    let Hyper { beta1, beta2, epsilon, weight_decay, .. } = *hyper;
    let [first_correction, second_correction] = hyper.corrections(step).map(T::from_f64);
    let [beta1, one_minus_beta1] = [beta1, 1. - beta1].map(T::from_f64);
    let [beta2, one_minus_beta2] = [beta2, 1. - beta2].map(T::from_f64);
    let [epsilon, weight_decay] = [epsilon, weight_decay].map(T::from_f64);

    let len = block_len(1);
    let moments = first_moment.chunks_mut(len).zip(second_moment.chunks_mut(len));
    let norms = run::<T, _, _>(
        parameter.len(),
        update.chunks_mut(len).zip(parameter.chunks(len)).zip(gradient.chunks(len)).zip(moments),
        #[inline(always)]
        |(((update, parameter), gradient), (first_moment, second_moment))| {
            let state = first_moment.iter_mut().zip(second_moment);
            let inputs = parameter.iter().zip(gradient);
            for ((u, (&theta, &g)), (m, v)) in update.iter_mut().zip(inputs).zip(state) {
                *m = beta1 * *m + one_minus_beta1 * g;
                *v = beta2 * *v + one_minus_beta2 * g * g;
                let denominator = v.sqrt() * second_correction + epsilon;
                let adam = *m * first_correction / denominator;
                *u = adam + weight_decay * theta;
            }
            [squares(parameter), squares(update)]
        },
    );
    norms.into_iter().fold([0.; 2], |[a, b], [x, y]| [a + x, b + y])
}
