//! The kernels: some blocks for each matrix of a list, and what lies between them once for all matrices.

use candle_core::{Result, Tensor, Var};

use super::{Hyper, Slot, orthogonalized};
use crate::backend::cuda::lists::{Item, MOST, Rates};
use crate::backend::cuda::{self, Buffer, Launch, wide};

/// Whether the kernels take this: a gradient may be in half the precision of what it changes.
pub(super) fn takes(slot: &Slot<'_>) -> bool {
    let state = [slot.parameter, slot.momentum].map(Var::as_tensor);
    cuda::takes(&state)
        && cuda::takes(&[slot.gradient])
        && state.iter().all(|x| x.is_contiguous())
        && wide(slot.gradient.dtype()) == slot.parameter.dtype()
        && slot.gradient.device().same_device(slot.parameter.device())
}

/// Of slots that are updated alike, of one shape.
pub(super) fn step(slots: &[Slot<'_>]) -> Result<()> {
    for slots in slots.chunks(MOST) {
        let Hyper { n_iterations, .. } = slots[0].hyper;
        apply(slots, &orthogonalized(&directions(slots)?, n_iterations)?)?;
    }
    Ok(())
}

/// The momenta's next values in their places, and the directions that follow: `(slots, rows, columns)`
fn directions(slots: &[Slot<'_>]) -> Result<Tensor> {
    let Slot { parameter, hyper, .. } = slots[0];
    let (rows, columns) = parameter.dims2()?;
    let gradients =
        slots.iter().map(|slot| slot.gradient.contiguous()).collect::<Result<Vec<_>>>()?;
    let (len, dtype) = (rows * columns, parameter.dtype());
    let directions = Buffer::unwritten(slots.len() * len, dtype, parameter.device())?;
    let mut lists = Vec::with_capacity(slots.len());
    for (i, (slot, gradient)) in slots.iter().zip(&gradients).enumerate() {
        let [gradient, momentum] = [gradient, slot.momentum.as_tensor()].map(Item::Tensor);
        lists.push((len, [gradient, momentum, Item::Part(&directions, i * len, dtype)]));
    }
    Launch::lists("muon_directions", &gradients[0], &lists)?
        .number(hyper.gradient_scale)
        .number(hyper.momentum)
        .int(hyper.nesterov.into())
        .run()?;
    directions.tensor((slots.len(), rows, columns))
}

/// Updates of the parameters, `(slots, rows, columns)`.
fn apply(slots: &[Slot<'_>], updates: &Tensor) -> Result<()> {
    let parameter = slots[0].parameter.as_tensor();
    let updates = (0..slots.len()).map(|i| updates.get(i)).collect::<Result<Vec<_>>>()?;
    let (mut rates, mut lists) = (Rates::default(), Vec::with_capacity(slots.len()));
    for (i, (slot, update)) in slots.iter().zip(&updates).enumerate() {
        let Hyper { lr, scale, weight_decay, .. } = slot.hyper;
        (rates.lr[i], rates.weight_decay[i]) = (lr * scale, lr * weight_decay);
        lists.push((update.elem_count(), [slot.parameter.as_tensor(), update].map(Item::Tensor)));
    }
    Launch::lists("muon", parameter, &lists)?.plain(rates).run()
}
