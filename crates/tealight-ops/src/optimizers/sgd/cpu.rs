//! The fused loop: one pass over parameter, gradient and momentum.

use super::Hyper;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};

pub(super) fn step<T: Element>(
    [parameter, momentum_buffer]: [&mut [T]; 2],
    gradient: &[T],
    step: u64,
    hyper: &Hyper,
) {
    if step == 1 {
        momentum_buffer.fill(T::ZERO);
    }
    let Hyper { lr, momentum, nesterov, weight_decay } = *hyper;
    // d = `gradient_weight` g + `buffer_weight` b
    let (gradient_weight, buffer_weight) = if nesterov { (1., momentum) } else { (0., 1.) };
    let [gradient_weight, buffer_weight] = [gradient_weight, buffer_weight].map(T::from_f64);
    let [lr, keep, momentum] = [lr, 1. - lr * weight_decay, momentum].map(T::from_f64);

    let len = block_len(1);
    run::<T, _, _>(
        gradient.len(),
        parameter.chunks_mut(len).zip(gradient.chunks(len)).zip(momentum_buffer.chunks_mut(len)),
        #[inline(always)]
        |((parameter, gradient), buffer)| {
            for ((theta, &g), b) in parameter.iter_mut().zip(gradient).zip(buffer) {
                *b = momentum * *b + g;
                let direction = gradient_weight * g + buffer_weight * *b;
                *theta = *theta * keep - lr * direction;
            }
        },
    );
}
