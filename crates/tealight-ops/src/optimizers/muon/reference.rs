//! The definition of an update, in tensor operations.

use candle_core::{Result, Tensor};

use super::{Hyper, Slot, orthogonalised};
use crate::optimizers::update::{store, wide};

/// Updates matrices of one shape; see [`step_all`](super::step_all).
pub(super) fn step(slots: &[Slot<'_>]) -> Result<()> {
    let (hyper, shape) = (slots[0].hyper, slots[0].shape());
    let directions = slots.iter().map(|slot| direction(slot)?.reshape(shape));
    let directions = directions.collect::<Result<Vec<_>>>()?;
    let updates = orthogonalised(&Tensor::stack(&directions, 0)?, hyper.n_iterations)?;
    for (i, Slot { parameter, hyper, .. }) in slots.iter().enumerate() {
        let Hyper { lr, scale, weight_decay, .. } = *hyper;
        let step = (updates.get(i)?.reshape(parameter.dims())? * (lr * scale))?;
        store(parameter, &((wide(parameter)? * (1. - lr * weight_decay))? - step)?)?;
    }
    Ok(())
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
