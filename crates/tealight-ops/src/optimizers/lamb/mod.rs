//! LAMB: Adam with each update scaled to the norm of its parameter (You et al. 2020,
//! <https://arxiv.org/abs/1904.00962>).
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²                          algorithm 2
//! m̂ = m / (1 − β₁ᵗ),       v̂ = v / (1 − β₂ᵗ)
//! u = m̂ / (√v̂ + ε) + λ θ
//! θ ← θ − lr · (‖θ‖ / ‖u‖) · u
//! ```
//!
//! φ, the paper's bound on ‖θ‖, is the identity. Where a norm is 0 the ratio is 1.
//!
//! Cost: two passes, and one array of the parameter's size for u.

mod cpu;
pub mod reference;

use candle_core::{Result, Tensor, Var};

use crate::backend::choice::dispatch;
use crate::optimizers::update::{check_shapes, check_step, update_in_place};

/// Hyper-parameters of one update, under the paper's names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// η: the step size, schedule included.
    pub lr: f64,
    /// β₁: the decay of the first moment.
    pub beta1: f64,
    /// β₂: the decay of the second moment.
    pub beta2: f64,
    /// ε: keeps the division finite.
    pub epsilon: f64,
    /// λ: multiplied by `lr` and the ratio.
    pub weight_decay: f64,
    /// Whether to use m̂ and v̂ as in algorithm 2, or m and v instead.
    pub bias_correction: bool,
    /// Whether to multiply by ‖θ‖ / ‖u‖. Off gives Adam.
    pub trust_ratio: bool,
}

impl Hyper {
    /// 1 / (1 − β₁ᵗ) and 1 / √(1 − β₂ᵗ); 1 and 1 without bias correction.
    fn corrections(&self, step: u64) -> [f64; 2] {
        if !self.bias_correction {
            return [1.; 2];
        }
        let remaining = |beta: f64| 1. - beta.powf(step as f64);
        [1. / remaining(self.beta1), 1. / remaining(self.beta2).sqrt()]
    }

    /// lr · ‖θ‖ / ‖u‖, from ‖θ‖² and ‖u‖²
    fn step_size(&self, squared_norms: [f64; 2]) -> f64 {
        let [theta, u] = squared_norms;
        let are_positive = theta > 0. && u > 0.;
        let ratio = if self.trust_ratio && are_positive { (theta / u).sqrt() } else { 1. };
        self.lr * ratio
    }
}

/// A parameter, its gradient and its two moments, which start as zeros. All have one shape.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// θ.
    pub parameter: &'a Var,
    /// g.
    pub gradient: &'a Tensor,
    /// m.
    pub first_moment: &'a Var,
    /// v.
    pub second_moment: &'a Var,
    /// The hyper-parameters of this parameter.
    pub hyper: Hyper,
}

/// Update number `step`, counted from 1, of `slot`, in place.
///
/// # Errors
/// If shapes differ, or `step` is 0.
pub fn step(slot: &Slot<'_>, step: u64) -> Result<()> {
    let Slot { parameter, gradient, first_moment, second_moment, hyper } = *slot;
    check_step("lamb", step)?;
    check_shapes("lamb", parameter, &[gradient, first_moment, second_moment])?;
    dispatch!(match [gradient, parameter, first_moment, second_moment] {
        Cpu(T) => {
            let state = [parameter, first_moment, second_moment];
            update_in_place(state, gradient, |state, gradient| {
                cpu::step::<T>(state, gradient, step, &hyper);
            })
        }
        Cuda | Reference => reference::step(slot, step),
    })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    const HYPER: Hyper = Hyper {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-6,
        weight_decay: 0.3,
        bias_correction: true,
        trust_ratio: true,
    };

    #[test]
    fn an_update_is_as_long_as_lr_times_the_parameter() -> Result<()> {
        for scale in [1e-3, 1., 1e3] {
            let before = (Tensor::new(&[3_f64, -4., 12.], &Device::Cpu)? * scale)?;
            let parameter = Var::from_tensor(&before)?;
            let zeros = || Var::from_tensor(&before.zeros_like()?);
            let slot = Slot {
                parameter: &parameter,
                gradient: &Tensor::new(&[5_f64, -0.01, 7e3], &Device::Cpu)?,
                first_moment: &zeros()?,
                second_moment: &zeros()?,
                hyper: HYPER,
            };
            step(&slot, 1)?;
            let moved = (parameter.as_tensor() - before)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
            assert!((moved.sqrt() / (13. * scale) - 0.1).abs() < 1e-12, "{moved}");
        }
        Ok(())
    }

    #[test]
    fn shapes_and_step_zero_are_refused() -> Result<()> {
        let var = |n: usize| Var::zeros(n, candle_core::DType::F32, &Device::Cpu);
        let (three, two) = (var(3)?, var(2)?);
        let slot = Slot {
            parameter: &three,
            gradient: &three,
            first_moment: &three,
            second_moment: &three,
            hyper: HYPER,
        };
        assert!(step(&slot, 0).is_err());
        assert!(step(&Slot { second_moment: &two, ..slot }, 1).is_err());
        Ok(())
    }
}
