//! The CPU loops before and after the orthogonalisation: one pass over momentum and gradient, one over the parameter.

use candle_core::Result;

use super::{Hyper, Slot, newton_schulz};
use crate::backend::buffer::{unwritten, with_slice_mut};
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};
use crate::backend::simd::vector::Lanes;
use crate::optimizers::update::update_in_place;

/// Updates slots of one shape with the same hyper-parameters, except learning rate, scale and weight decay. All tensors
/// are of `T`.
pub(super) fn step<T: Lanes>(slots: &[Slot<'_>]) -> Result<()> {
    let (shape, n_iterations) = (slots[0].shape(), slots[0].hyper.n_iterations);
    let len = shape.0 * shape.1;
    let mut directions = unwritten(slots.len() * len);
    for (Slot { gradient, momentum, hyper, .. }, direction) in
        slots.iter().zip(directions.chunks_mut(len))
    {
        update_in_place([momentum], gradient, |[momentum], gradient| {
            write_direction::<T>(direction, momentum, gradient, hyper);
        })?;
    }
    let updates = newton_schulz::cpu::orthogonalised(directions, shape, n_iterations);
    for (Slot { parameter, hyper, .. }, update) in slots.iter().zip(updates.chunks(len)) {
        with_slice_mut(parameter, |parameter| {
            apply::<T>(parameter, update, hyper);
            Ok(())
        })?;
    }
    Ok(())
}

/// Updates the momentum M, and writes the direction N.
fn write_direction<T: Element>(
    direction: &mut [T],
    momentum: &mut [T],
    gradient: &[T],
    hyper: &Hyper,
) {
    let Hyper { momentum: mu, nesterov, gradient_scale, .. } = *hyper;
    let [mu, gradient_scale] = [mu, gradient_scale].map(T::from_f64);
    let len = block_len(1);
    run(
        gradient.len(),
        direction.chunks_mut(len).zip(momentum.chunks_mut(len)).zip(gradient.chunks(len)),
        #[inline(always)]
        |((direction, momentum), gradient)| {
            for ((n, m), &g) in direction.iter_mut().zip(momentum).zip(gradient) {
                let g = g * gradient_scale;
                *m = mu * *m + g;
                *n = if nesterov { g + mu * *m } else { *m };
            }
        },
    );
}

/// θ ← θ − lr (scale · O + λ θ)
fn apply<T: Element>(parameter: &mut [T], update: &[T], hyper: &Hyper) {
    let Hyper { lr, scale, weight_decay, .. } = *hyper;
    let [keep, step_size] = [1. - lr * weight_decay, lr * scale].map(T::from_f64);
    let len = block_len(1);
    run(
        update.len(),
        parameter.chunks_mut(len).zip(update.chunks(len)),
        #[inline(always)]
        |(parameter, update)| {
            for (theta, &o) in parameter.iter_mut().zip(update) {
                *theta = *theta * keep - step_size * o;
            }
        },
    );
}
