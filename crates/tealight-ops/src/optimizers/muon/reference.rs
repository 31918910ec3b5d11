//! The definition of an update, in tensor operations.

use candle_core::{Result, Tensor};

use super::{EPSILON, Hyper, RowMoment, Slot, orthogonalised};
use crate::optimizers::update::{averaged, store, wide};

/// Updates matrices of one shape; see [`step_all`](super::step_all).
pub(super) fn step(slots: &[Slot<'_>]) -> Result<()> {
    let (hyper, shape) = (slots[0].hyper, slots[0].shape());
    let directions = slots.iter().map(|slot| direction(slot)?.reshape(shape));
    let directions = directions.collect::<Result<Vec<_>>>()?;
    let updates = orthogonalised(&Tensor::stack(&directions, 0)?, hyper.n_iterations)?;
    for (i, Slot { parameter, row_moment, hyper, .. }) in slots.iter().enumerate() {
        let Hyper { lr, scale, weight_decay, .. } = *hyper;
        let mut update = updates.get(i)?;
        if let Some(row_moment) = row_moment {
            update = with_even_rows(&update, row_moment)?;
        }
        let step = (update.reshape(parameter.dims())? * (lr * scale))?;
        store(parameter, &((wide(parameter)? * (1. - lr * weight_decay))? - step)?)?;
    }
    Ok(())
}

/// Divides each row of O by its root mean square over time, and keeps ‖O‖.
fn with_even_rows(o: &Tensor, rows: &RowMoment<'_>) -> Result<Tensor> {
    let now = o.sqr()?.mean(1)?; // (rows)
    let average = averaged(rows.moment, &now, rows.decay)?;
    let even = o.broadcast_div(&(average.sqrt()? + EPSILON)?.unsqueeze(1)?)?;
    let norm = |x: &Tensor| x.sqr()?.sum_all()?.sqrt();
    let ratio = (norm(o)? / (norm(&even)? + EPSILON)?)?;
    even.broadcast_mul(&ratio)
}

/// Updates the momentum M. Returns the direction N.
fn direction(slot: &Slot<'_>) -> Result<Tensor> {
    let Slot { gradient, momentum, hyper, .. } = slot;
    let Hyper { momentum: mu, nesterov, gradient_scale, .. } = *hyper;
    let gradient = (wide(gradient)? * gradient_scale)?;
    let buffer = ((wide(momentum)? * mu)? + &gradient)?;
    store(momentum, &buffer)?;
    if nesterov { gradient + (&buffer * mu)? } else { Ok(buffer) }
}
