//! Adam with decoupled weight decay, `AdamW` (Loshchilov and Hutter 2019,
//! <https://arxiv.org/abs/1711.05101>).
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²                          algorithm 2
//! m̂ = m / (1 − β₁ᵗ),       v̂ = v / (1 − β₂ᵗ)
//! θ ← θ − lr (m̂ / (√v̂ + ε) + λ θ)
//! ```
//!
//! The paper separates the schedule η from the step size α and decays by ηλ. `torch.optim.AdamW`,
//! which we follow, decays by lr·λ with lr = ηα, so λ here is the paper's divided by α.
//!
//! Cost: one pass over four arrays; the reference implementation takes about fourteen.

mod cpu;
mod cuda;
pub mod reference;

use candle_core::{Result, Tensor, Var};

use crate::backend::choice::dispatch;
use crate::backend::reference_ops;
use crate::optimizers::update::{check_shapes, check_step, update_in_place};

/// Hyper-parameters of one update, under the names of `torch.optim.AdamW`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// ηα: the step size, schedule included.
    pub lr: f64,
    /// β₁: the decay of the first moment.
    pub beta1: f64,
    /// β₂: the decay of the second moment.
    pub beta2: f64,
    /// ε: keeps the division finite.
    pub epsilon: f64,
    /// λ: multiplied by `lr`.
    pub weight_decay: f64,
    /// The factor of every gradient, applied while it is read, so that clipping needs no pass of its own.
    pub gradient_scale: f64,
}

/// A parameter, its gradient and its two moments, which start as zeros. All have one shape.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// θ.
    pub parameter: &'a Var,
    /// g, which may have half the precision of the parameter.
    pub gradient: &'a Tensor,
    /// m.
    pub first_moment: &'a Var,
    /// v.
    pub second_moment: &'a Var,
    /// The hyper-parameters of this parameter.
    pub hyper: Hyper,
}

impl<'a> Slot<'a> {
    fn state(&self) -> [&'a Var; 3] {
        [self.parameter, self.first_moment, self.second_moment]
    }

    fn check(&self) -> Result<()> {
        let operands = [self.gradient, self.first_moment, self.second_moment];
        check_shapes("adamw", self.parameter, &operands)
    }
}

/// Update number `step`, counted from 1, of all `slots`, in place. On a GPU, one kernel updates many slots.
///
/// # Errors
/// If shapes differ, or `step` is 0.
pub fn step_all(slots: &[Slot<'_>], step: u64) -> Result<()> {
    check_step("adamw", step)?;
    slots.iter().try_for_each(Slot::check)?;
    let in_common = |slot: &Slot<'_>| {
        let Hyper { beta1, beta2, epsilon, gradient_scale, .. } = slot.hyper;
        (beta1, beta2, epsilon, gradient_scale, slot.gradient.dtype())
    };
    for slots in slots.chunk_by(|a, b| in_common(a) == in_common(b)) {
        if !reference_ops::are_forced() && slots.iter().all(cuda::takes) {
            cuda::step(slots, step)?;
        } else {
            slots.iter().try_for_each(|slot| step_one(slot, step))?;
        }
    }
    Ok(())
}

fn step_one(slot: &Slot<'_>, step: u64) -> Result<()> {
    let Slot { parameter, gradient, first_moment, second_moment, hyper } = slot;
    dispatch!(match [gradient, parameter, first_moment, second_moment] {
        Cpu(T) => update_in_place(slot.state(), gradient, |state, gradient| {
            cpu::step::<T>(state, gradient, step, hyper);
        }),
        Cuda | Reference => reference::step(slot, step),
    })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// The first update moves each element by lr against the sign of its gradient, as m̂ = g and √v̂ = |g|.
    #[test]
    fn the_first_step_has_the_size_of_the_learning_rate() -> Result<()> {
        let hyper = Hyper {
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 0.,
            weight_decay: 0.5,
            gradient_scale: 1.,
        };
        let parameter = Var::new(&[1_f64, 2., 3.], &Device::Cpu)?;
        let gradient = Tensor::new(&[5_f64, -0.01, 7e3], &Device::Cpu)?;
        let [m, v] = [
            Var::from_tensor(&parameter.zeros_like()?)?,
            Var::from_tensor(&parameter.zeros_like()?)?,
        ];
        let slot = Slot {
            parameter: &parameter,
            gradient: &gradient,
            first_moment: &m,
            second_moment: &v,
            hyper,
        };
        step_all(&[slot], 1)?;
        let expected = [0.95 - 0.1, 1.9 + 0.1, 2.85 - 0.1];
        for (actual, expected) in parameter.to_vec1::<f64>()?.into_iter().zip(expected) {
            assert!((actual - expected).abs() < 1e-12, "{actual} is not {expected}");
        }
        Ok(())
    }

    #[test]
    fn shapes_and_step_zero_are_refused() -> Result<()> {
        let hyper = Hyper {
            lr: 0.1,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
            weight_decay: 0.,
            gradient_scale: 1.,
        };
        let var = |n: usize| Var::zeros(n, candle_core::DType::F32, &Device::Cpu);
        let (three, two) = (var(3)?, var(2)?);
        let slot = Slot {
            parameter: &three,
            gradient: &three,
            first_moment: &three,
            second_moment: &three,
            hyper,
        };
        assert!(step_all(&[slot], 0).is_err());
        assert!(step_all(&[Slot { second_moment: &two, ..slot }], 1).is_err());
        Ok(())
    }
}
