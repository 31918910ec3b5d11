//! The definition of an update, in tensor operations.

use candle_core::{Result, Tensor};

use super::{EPSILON, Hyper, Slot, orthogonalised};
use crate::optimizers::update::{averaged, store, wide};

/// Updates matrices of one shape; see [`step_all`](super::step_all).
pub(super) fn step(slots: &[Slot<'_>]) -> Result<()> {
    let (hyper, shape) = (slots[0].hyper, slots[0].shape());
    let directions = slots.iter().map(|slot| direction(slot)?.reshape(shape));
    let directions = directions.collect::<Result<Vec<_>>>()?;
    let updates = orthogonalised(&Tensor::stack(&directions, 0)?, hyper.n_iterations)?;
    let updates = with_even_rows(updates, slots)?;
    for (i, Slot { parameter, hyper, .. }) in slots.iter().enumerate() {
        let Hyper { lr, scale, weight_decay, .. } = *hyper;
        let step = (updates.get(i)?.reshape(parameter.dims())? * (lr * scale))?;
        store(parameter, &((wide(parameter)? * (1. - lr * weight_decay))? - step)?)?;
    }
    Ok(())
}

/// Divides each row of O by its root mean square over time, and keeps the norm of each matrix. `o (slots, rows,
/// columns)` → the same shape; the row moments are updated. If the slots have none, `o` itself.
pub(super) fn with_even_rows(o: Tensor, slots: &[Slot<'_>]) -> Result<Tensor> {
    let moments = slots.iter().map(|slot| slot.row_moment).collect::<Option<Vec<_>>>();
    let Some(moments) = moments else { return Ok(o) };
    let now = o.sqr()?.mean(2)?; // (slots, rows)
    let averages = moments.iter().enumerate();
    let averages = averages.map(|(i, rows)| averaged(rows.moment, &now.get(i)?, rows.decay));
    let averages = averages.collect::<Result<Vec<_>>>()?;
    let divisors = (Tensor::stack(&averages, 0)?.sqrt()? + EPSILON)?.unsqueeze(2)?;
    let even = o.broadcast_div(&divisors)?;
    let norms = |x: &Tensor| x.sqr()?.sum_keepdim((1, 2))?.sqrt();
    let ratios = (norms(&o)? / (norms(&even)? + EPSILON)?)?; // (slots, 1, 1)
    even.broadcast_mul(&ratios)
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
