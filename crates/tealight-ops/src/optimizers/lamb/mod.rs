//! LAMB: Adam whose updates are as long as the parameter (You et al. 2020,
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

use candle_core::{Result, Tensor, Var, bail};

use crate::backend::buffer::{View, with_slice_mut};
use crate::backend::choice::dispatch;
use crate::backend::element::Element;

/// Hyper-parameters of one update, under the paper's names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// η: the step size, schedule included.
    pub lr: f64,
    /// β₁: how much of the first moment is kept.
    pub beta1: f64,
    /// β₂: how much of the second moment is kept.
    pub beta2: f64,
    /// ε: keeps the division finite.
    pub epsilon: f64,
    /// λ: multiplied by `lr` and the ratio.
    pub weight_decay: f64,
    /// m̂ and v̂ as in algorithm 2; without, m and v in their places.
    pub bias_correction: bool,
    /// Multiply by ‖θ‖ / ‖u‖; without, it is Adam.
    pub trust_ratio: bool,
}

impl Hyper {
    /// 1 / (1 − β₁ᵗ) and 1 / √(1 − β₂ᵗ), or 1 and 1.
    fn corrections(&self, step: u64) -> [f64; 2] {
        if !self.bias_correction {
            return [1.; 2];
        }
        let remaining = |beta: f64| 1. - beta.powf(step as f64);
        [1. / remaining(self.beta1), 1. / remaining(self.beta2).sqrt()]
    }

    /// lr · ‖θ‖ / ‖u‖
    fn step_size(&self, squared_norms: [f64; 2]) -> f64 {
        let [of_parameter, of_update] = squared_norms;
        let usable = of_parameter > 0. && of_update > 0.;
        let ratio = if self.trust_ratio && usable { (of_parameter / of_update).sqrt() } else { 1. };
        self.lr * ratio
    }
}

/// Update number `step`, counted from 1, of one parameter and its two moments, in place.
///
/// All four tensors have the parameter's shape, and the moments start as zeros.
///
/// # Errors
/// If a shape differs, or `step` is 0.
pub fn step(
    parameter: &Var,
    gradient: &Tensor,
    first_moment: &Var,
    second_moment: &Var,
    step: u64,
    hyper: &Hyper,
) -> Result<()> {
    if step == 0 {
        bail!("lamb step 0: steps count from 1")
    }
    for operand in [gradient, first_moment, second_moment] {
        if operand.dims() != parameter.dims() {
            bail!("lamb of a parameter {:?} with {:?}", parameter.shape(), operand.shape())
        }
    }
    let state = [parameter, first_moment, second_moment].map(Var::as_tensor);
    let [theta, m, v] = state;
    let reference =
        || reference::step(parameter, gradient, first_moment, second_moment, step, hyper);
    if !state.iter().all(|tensor| tensor.is_contiguous()) {
        return reference();
    }
    dispatch!(match [theta, gradient, m, v] {
        Cpu(T) => on_cpu::<T>(state, gradient, step, hyper),
        Cuda | Reference => reference(),
    })
}

fn on_cpu<T: Element>(
    [parameter, first_moment, second_moment]: [&Tensor; 3],
    gradient: &Tensor,
    step: u64,
    hyper: &Hyper,
) -> Result<()> {
    let gradient = gradient.contiguous()?;
    let gradient = View::of(&gradient)?;
    with_slice_mut(parameter, |parameter| {
        with_slice_mut(first_moment, |m| {
            with_slice_mut(second_moment, |v| {
                cpu::step::<T>(parameter, &gradient, [m, v], step, hyper);
                Ok(())
            })
        })
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
            let gradient = Tensor::new(&[5_f64, -0.01, 7e3], &Device::Cpu)?;
            step(&parameter, &gradient, &zeros()?, &zeros()?, 1, &HYPER)?;
            let moved = (parameter.as_tensor() - before)?.sqr()?.sum_all()?.to_scalar::<f64>()?;
            assert!((moved.sqrt() / (13. * scale) - 0.1).abs() < 1e-12, "{moved}");
        }
        Ok(())
    }

    #[test]
    fn shapes_and_step_zero_are_refused() -> Result<()> {
        let var = |n: usize| Var::zeros(n, candle_core::DType::F32, &Device::Cpu);
        let (parameter, gradient) = (var(3)?, var(3)?);
        assert!(step(&parameter, &gradient, &var(3)?, &var(3)?, 0, &HYPER).is_err());
        assert!(step(&parameter, &gradient, &var(3)?, &var(2)?, 1, &HYPER).is_err());
        Ok(())
    }
}
