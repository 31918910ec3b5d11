//! The fused loop: one pass over parameter, gradient and momentum.

use super::Hyper;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};

pub(super) fn step<T: Element>(
    [parameter, momentum]: [&mut [T]; 2],
    gradient: &[T],
    hyper: &Hyper,
) {
    let Hyper { lr, beta1, beta2, weight_decay } = *hyper;
    let [lr, keep] = [lr, 1. - lr * weight_decay].map(T::from_f64);
    let [beta1, one_minus_beta1] = [beta1, 1. - beta1].map(T::from_f64);
    let [beta2, one_minus_beta2] = [beta2, 1. - beta2].map(T::from_f64);

    let len = block_len(1);
    run::<T, _, _>(
        gradient.len(),
        parameter.chunks_mut(len).zip(gradient.chunks(len)).zip(momentum.chunks_mut(len)),
        #[inline(always)]
        |((parameter, gradient), momentum)| {
            for ((theta, &g), m) in parameter.iter_mut().zip(gradient).zip(momentum) {
                let c = beta1 * *m + one_minus_beta1 * g;
                // sign(0) = 0
                let up = if c > T::ZERO { lr } else { T::ZERO };
                let down = if c < T::ZERO { lr } else { T::ZERO };
                *theta = *theta * keep - (up - down);
                *m = beta2 * *m + one_minus_beta2 * g;
            }
        },
    );
}
