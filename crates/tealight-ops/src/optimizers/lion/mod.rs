//! Lion: steps along the sign of a momentum (Chen et al. 2023, <https://arxiv.org/abs/2302.06675>).
//!
//! ```text
//! c = β₁ m + (1 − β₁) g                                                    algorithm 2
//! θ ← θ − lr (sign(c) + λ θ)
//! m ← β₂ m + (1 − β₂) g
//! ```
//!
//! Cost: one pass over three arrays.

mod cpu;
pub mod reference;

use candle_core::{Result, Tensor, Var};

use crate::backend::choice::dispatch;
use crate::optimizers::update::{check_shapes, update_in_place};

/// Hyper-parameters of one update, under the paper's names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// η: the step size, schedule included.
    pub lr: f64,
    /// β₁: the weight of the momentum in c.
    pub beta1: f64,
    /// β₂: the decay of the momentum.
    pub beta2: f64,
    /// λ: multiplied by `lr`.
    pub weight_decay: f64,
}

/// One update of a parameter and its momentum, in place.
///
/// All three tensors have one shape, and the momentum starts as zeros.
///
/// # Errors
/// If shapes differ.
pub fn step(parameter: &Var, gradient: &Tensor, momentum: &Var, hyper: &Hyper) -> Result<()> {
    check_shapes("lion", parameter, &[gradient, momentum])?;
    dispatch!(match [gradient, parameter, momentum] {
        Cpu(T) => update_in_place([parameter, momentum], gradient, |state, gradient| {
            cpu::step::<T>(state, gradient, hyper);
        }),
        Cuda | Reference => reference::step(parameter, gradient, momentum, hyper),
    })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    #[test]
    fn every_element_moves_by_the_learning_rate_or_not_at_all() -> Result<()> {
        let hyper = Hyper { lr: 0.5, beta1: 0.9, beta2: 0.99, weight_decay: 0. };
        let parameter = Var::new(&[1_f32, 2., 3.], &Device::Cpu)?;
        let gradient = Tensor::new(&[5e-9_f32, -7e3, 0.], &Device::Cpu)?;
        let momentum = Var::from_tensor(&parameter.zeros_like()?)?;
        step(&parameter, &gradient, &momentum, &hyper)?;
        assert_eq!(parameter.to_vec1::<f32>()?, [0.5, 2.5, 3.]);
        Ok(())
    }

    #[test]
    fn another_shape_is_refused() -> Result<()> {
        let hyper = Hyper { lr: 0.1, beta1: 0.9, beta2: 0.99, weight_decay: 0. };
        let var = |n: usize| Var::zeros(n, candle_core::DType::F32, &Device::Cpu);
        assert!(step(&var(3)?, &*var(2)?, &var(3)?, &hyper).is_err());
        assert!(step(&var(3)?, &*var(3)?, &var(2)?, &hyper).is_err());
        Ok(())
    }
}
