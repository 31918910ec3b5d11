//! The fused loop: one pass over parameter, gradient and momentum.

use super::Hyper;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};

/// What the formula multiplies by: d = `of_gradient` g + `of_buffer` b.
pub(super) struct Factors<T> {
    keep: T,
    lr: T,
    momentum: T,
    of_gradient: T,
    of_buffer: T,
}

impl<T: Element> Factors<T> {
    pub(super) fn of(hyper: &Hyper) -> Self {
        let Hyper { lr, momentum, nesterov, weight_decay } = *hyper;
        let (of_gradient, of_buffer) = if nesterov { (1., momentum) } else { (0., 1.) };
        Self {
            keep: T::from_f64(1. - lr * weight_decay),
            lr: T::from_f64(lr),
            momentum: T::from_f64(momentum),
            of_gradient: T::from_f64(of_gradient),
            of_buffer: T::from_f64(of_buffer),
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
                let direction = factors.of_gradient * g + factors.of_buffer * *b;
                *theta = *theta * factors.keep - factors.lr * direction;
            }
        },
    );
}
