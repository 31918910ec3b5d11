//! Kernels for lists of matrices before and after the orthogonalisation, which is one batch of matrix products.

use candle_core::{Result, Tensor};

use super::reference::with_even_rows;
use super::{Hyper, Slot, orthogonalised};
use crate::backend::cuda::lists::{self, Item, MOST, Rates};
use crate::backend::cuda::{Buffer, Launch, Source};

const KERNELS: Source = Source::new("muon", &[lists::HEADER, include_str!("kernel.cu")]);

/// Whether the kernels can update a slot.
pub(super) fn takes(slot: &Slot<'_>) -> bool {
    lists::can_update(&[slot.parameter, slot.momentum], slot.gradient)
}

/// Updates slots of one shape with the same hyper-parameters, except learning rate, scale and weight decay.
pub(super) fn step(slots: &[Slot<'_>]) -> Result<()> {
    for slots in slots.chunks(MOST) {
        let Hyper { n_iterations, .. } = slots[0].hyper;
        let updates = orthogonalised(&directions(slots)?, n_iterations)?;
        apply(slots, &with_even_rows(updates, slots)?)?;
    }
    Ok(())
}

/// Updates the momenta in place. Returns the directions N: `(slots, rows, columns)`.
fn directions(slots: &[Slot<'_>]) -> Result<Tensor> {
    let Slot { parameter, hyper, .. } = slots[0];
    let (rows, columns) = slots[0].shape();
    let gradients =
        slots.iter().map(|slot| slot.gradient.contiguous()).collect::<Result<Vec<_>>>()?;
    let (len, dtype) = (rows * columns, parameter.dtype());
    let mut directions = Buffer::unwritten(slots.len() * len, dtype, parameter.device())?;
    let mut items = Vec::with_capacity(slots.len());
    let parts = directions.chunks_mut(len)?;
    for ((slot, gradient), part) in slots.iter().zip(&gradients).zip(parts) {
        let [gradient, momentum] = [gradient, slot.momentum.as_tensor()].map(Item::Tensor);
        items.push((len, [gradient, momentum, Item::Part(part)]));
    }
    Launch::lists(&KERNELS, "muon_directions", &gradients[0], items)?
        .number(hyper.gradient_scale)
        .number(hyper.momentum)
        .int(hyper.nesterov.into())
        .run()?;
    directions.tensor((slots.len(), rows, columns))
}

/// Updates the parameters by O, `updates (slots, rows, columns)`.
fn apply(slots: &[Slot<'_>], updates: &Tensor) -> Result<()> {
    let parameter = slots[0].parameter.as_tensor();
    let updates = (0..slots.len()).map(|i| updates.get(i)).collect::<Result<Vec<_>>>()?;
    let mut rates = Rates { lr: [0.; MOST], weight_decay: [0.; MOST] };
    let mut items = Vec::with_capacity(slots.len());
    for (i, (slot, update)) in slots.iter().zip(&updates).enumerate() {
        let Hyper { lr, scale, weight_decay, .. } = slot.hyper;
        (rates.lr[i], rates.weight_decay[i]) = (lr * scale, lr * weight_decay);
        items.push((update.elem_count(), [slot.parameter.as_tensor(), update].map(Item::Tensor)));
    }
    Launch::lists(&KERNELS, "muon", parameter, items)?.plain(rates).run()
}
