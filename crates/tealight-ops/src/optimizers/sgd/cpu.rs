//! The fused loop: one pass over parameter, gradient and momentum.

use super::Hyper;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};

/// The constants of an update, computed in f64: d = `gradient_weight` g + `buffer_weight` b.
pub(super) struct Factors<T> {
    keep: T,
    lr: T,
    momentum: T,
    gradient_weight: T,
    buffer_weight: T,
}

impl<T: Element> Factors<T> {
    pub(super) fn of(hyper: &Hyper) -> Self {
        let Hyper { lr, momentum, nesterov, weight_decay } = *hyper;
        let (gradient_weight, buffer_weight) = if nesterov { (1., momentum) } else { (0., 1.) };
        Self {
            keep: T::from_f64(1. - lr * weight_decay),
            lr: T::from_f64(lr),
            momentum: T::from_f64(momentum),
            gradient_weight: T::from_f64(gradient_weight),
            buffer_weight: T::from_f64(buffer_weight),
        }
    }
}

pub(super) fn step<T: Element>(
    parameter: &mut [T],
    gradient: &[T],
    momentum_buffer: &mut [T],
    factors: &Factors<T>,
) {
    let n = parameter.len();
    let len = block_len(1);
    run(
        n,
        parameter.chunks_mut(len).zip(gradient.chunks(len)).zip(momentum_buffer.chunks_mut(len)),
        #[inline(always)]
        |((parameter, gradient), buffer)| {
            for ((theta, &g), b) in parameter.iter_mut().zip(gradient).zip(buffer) {
                *b = factors.momentum * *b + g;
                let direction = factors.gradient_weight * g + factors.buffer_weight * *b;
                *theta = *theta * factors.keep - factors.lr * direction;
            }
        },
    );
}
