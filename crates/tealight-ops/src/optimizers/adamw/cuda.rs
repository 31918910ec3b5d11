//! One kernel for lists of parameters.

use candle_core::Result;

use super::{Hyper, Slot};
use crate::backend::cuda::lists::{self, Item, MOST, Rates};
use crate::backend::cuda::{Launch, Source};

const KERNELS: Source = Source::new("adamw", &[lists::HEADER, include_str!("kernel.cu")]);

/// Whether the kernel can update a slot.
pub(super) fn takes(slot: &Slot<'_>) -> bool {
    lists::can_update(&slot.state(), slot.gradient)
}

/// Updates slots whose gradients have one dtype and whose β, ε and gradient scale are the same.
pub(super) fn step(slots: &[Slot<'_>], step: u64) -> Result<()> {
    for chunk in slots.chunks(MOST) {
        let gradients = chunk.iter().map(|slot| slot.gradient.contiguous());
        let gradients = gradients.collect::<Result<Vec<_>>>()?;
        let mut rates = Rates { lr: [0.; MOST], weight_decay: [0.; MOST] };
        let mut items = Vec::with_capacity(chunk.len());
        for (i, (slot, gradient)) in chunk.iter().zip(&gradients).enumerate() {
            (rates.lr[i], rates.weight_decay[i]) = (slot.hyper.lr, slot.hyper.weight_decay);
            let [theta, m, v] = slot.state().map(|x| Item::Tensor(x.as_tensor()));
            items.push((gradient.elem_count(), [theta, Item::Tensor(gradient), m, v]));
        }
        let Hyper { beta1, beta2, epsilon, gradient_scale, .. } = chunk[0].hyper;
        let correction = |beta: f64| 1. - beta.powf(step as f64);
        Launch::lists(&KERNELS, "adamw", &gradients[0], items)?
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
