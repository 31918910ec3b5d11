//! The CPU loops before and after the orthogonalisation: one pass over momentum and gradient, one over the parameter.

use candle_core::Result;

use super::{EPSILON, Hyper, RowMoment, Slot, newton_schulz};
use crate::backend::buffer::{unwritten, with_slice_mut};
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run, squares, sum_of_squares};
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
    let mut updates = newton_schulz::cpu::orthogonalised(directions, shape, n_iterations);
    for (slot, update) in slots.iter().zip(updates.chunks_mut(len)) {
        let Slot { parameter, row_moment, hyper, .. } = slot;
        if let Some(RowMoment { moment, decay }) = row_moment {
            with_slice_mut(moment, |moment| {
                even_rows::<T>(update, moment, *decay);
                Ok(())
            })?;
        }
        with_slice_mut(parameter, |parameter| {
            apply::<T>(parameter, update, hyper);
            Ok(())
        })?;
    }
    Ok(())
}

/// Updates the moving averages of the rows' mean squares, `moment`, divides each row of O by the root of its own, and
/// keeps ‖O‖.
fn even_rows<T: Element>(o: &mut [T], moment: &mut [T], decay: f64) {
    let columns = o.len() / moment.len();
    let norm = sum_of_squares(o).sqrt();
    let len = block_len(columns);
    run::<T, _, _>(
        o.len(),
        o.chunks_mut(len).zip(moment.chunks_mut(len / columns)),
        #[inline(always)]
        |(rows, averages)| {
            for (row, average) in rows.chunks_mut(columns).zip(averages) {
                let mean = squares(row) / columns as f64;
                *average = T::from_f64(decay * average.widen() + (1. - decay) * mean);
                let divisor = T::from_f64(average.widen().sqrt() + EPSILON);
                for x in row {
                    *x /= divisor;
                }
            }
        },
    );
    let factor = T::from_f64(norm / (sum_of_squares(o).sqrt() + EPSILON));
    let len = block_len(1);
    run::<T, _, _>(
        o.len(),
        o.chunks_mut(len),
        #[inline(always)]
        |o| {
            for x in o {
                *x *= factor;
            }
        },
    );
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
    run::<T, _, _>(
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
    run::<T, _, _>(
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
