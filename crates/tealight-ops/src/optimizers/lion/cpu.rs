//! The fused loop: one pass over parameter, gradient and momentum.

use super::Hyper;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};

/// The constants of an update, computed in f64.
pub(super) struct Factors<T> {
    keep: T,
    lr: T,
    beta1: T,
    one_minus_beta1: T,
    beta2: T,
    one_minus_beta2: T,
}

impl<T: Element> Factors<T> {
    pub(super) fn of(hyper: &Hyper) -> Self {
        let Hyper { lr, beta1, beta2, weight_decay } = *hyper;
        Self {
            keep: T::from_f64(1. - lr * weight_decay),
            lr: T::from_f64(lr),
            beta1: T::from_f64(beta1),
            one_minus_beta1: T::from_f64(1. - beta1),
            beta2: T::from_f64(beta2),
            one_minus_beta2: T::from_f64(1. - beta2),
        }
    }
}

pub(super) fn step<T: Element>(
    parameter: &mut [T],
    gradient: &[T],
    momentum: &mut [T],
    factors: &Factors<T>,
) {
    let n = parameter.len();
    let len = block_len(1);
    run(
        n,
        parameter.chunks_mut(len).zip(gradient.chunks(len)).zip(momentum.chunks_mut(len)),
        #[inline(always)]
        |((parameter, gradient), momentum)| {
            for ((theta, &g), m) in parameter.iter_mut().zip(gradient).zip(momentum) {
                let c = factors.beta1 * *m + factors.one_minus_beta1 * g;
                // sign(0) = 0
                let up = if c > T::ZERO { factors.lr } else { T::ZERO };
                let down = if c < T::ZERO { factors.lr } else { T::ZERO };
                *theta = *theta * factors.keep - (up - down);
                *m = factors.beta2 * *m + factors.one_minus_beta2 * g;
            }
        },
    );
}
