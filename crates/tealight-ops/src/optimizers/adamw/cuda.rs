//! The kernel: some blocks for each parameter of a list.

use candle_core::{Result, Var};

use super::{Hyper, Slot};
use crate::backend::cuda::lists::{Item, MOST, Rates};
use crate::backend::cuda::{self, Launch, wide};

/// Whether the kernel takes this: a gradient may be in half the precision of what it changes.
pub(super) fn takes(slot: &Slot<'_>) -> bool {
    let state = slot.state().map(Var::as_tensor);
    cuda::takes(&state)
        && cuda::takes(&[slot.gradient])
        && wide(slot.gradient.dtype()) == slot.parameter.dtype()
        && slot.gradient.device().same_device(slot.parameter.device())
        && state.iter().all(|x| x.is_contiguous())
}

/// Slots of one dtype of gradients, with the same β and ε.
pub(super) fn step(slots: &[Slot<'_>], step: u64) -> Result<()> {
    for chunk in slots.chunks(MOST) {
        let gradients = chunk.iter().map(|slot| slot.gradient.contiguous());
        let gradients = gradients.collect::<Result<Vec<_>>>()?;
        let mut rates = Rates::default();
        let mut lists = Vec::with_capacity(chunk.len());
        for (i, (slot, gradient)) in chunk.iter().zip(&gradients).enumerate() {
            (rates.lr[i], rates.weight_decay[i]) = (slot.hyper.lr, slot.hyper.weight_decay);
            let [theta, m, v] = slot.state().map(|x| Item::Tensor(x.as_tensor()));
            lists.push((gradient.elem_count(), [theta, Item::Tensor(gradient), m, v]));
        }
        let Hyper { beta1, beta2, epsilon, gradient_scale, .. } = chunk[0].hyper;
        let correction = |beta: f64| 1. - beta.powf(step as f64);
        Launch::lists("adamw", &gradients[0], &lists)?
            .plain(rates)
            .number(gradient_scale)
            .number(beta1)
            .number(beta2)
            .number(epsilon)
            .number(correction(beta1))
            .number(correction(beta2))
            .run()?;
    }
    Ok(())
}
