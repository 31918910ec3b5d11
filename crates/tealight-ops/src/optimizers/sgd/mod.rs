//! Stochastic gradient descent with momentum (Sutskever et al. 2013,
//! <https://proceedings.mlr.press/v28/sutskever13.html>).
//!
//! ```text
//! b ← μ b + g   (b ← g at the first step)
//! θ ← θ − lr (d + λ θ),   d = b,  or g + μ b under Nesterov's variant
//! ```
//!
//! As in `torch.optim.SGD`, the momentum buffer is not multiplied by lr. Unlike there, weight decay is decoupled,
//! as in [`adamw`](crate::optimizers::adamw), and does not enter the momentum. (`torch` adds λθ to g.)

mod cpu;
pub mod reference;

use candle_core::{Result, Tensor, Var};

use crate::backend::choice::dispatch;
use crate::optimizers::update::{check_shapes, check_step, update_in_place};

/// Hyper-parameters of one update, under the names of `torch.optim.SGD`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// The step size, schedule included.
    pub lr: f64,
    /// μ: the decay of the momentum buffer. 0 is plain gradient descent.
    pub momentum: f64,
    /// Whether to use Nesterov's variant, d = g + μ b.
    pub nesterov: bool,
    /// λ: multiplied by `lr`.
    pub weight_decay: f64,
}

/// A parameter, its gradient and its momentum buffer. All have one shape.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// θ.
    pub parameter: &'a Var,
    /// g.
    pub gradient: &'a Tensor,
    /// b, which step 1 does not read.
    pub momentum_buffer: &'a Var,
    /// The hyper-parameters of this parameter.
    pub hyper: Hyper,
}

/// Update number `step`, counted from 1, of `slot`, in place.
///
/// # Errors
/// If shapes differ, or `step` is 0.
pub fn step(slot: &Slot<'_>, step: u64) -> Result<()> {
    let Slot { parameter, gradient, momentum_buffer, hyper } = *slot;
    check_step("sgd", step)?;
    check_shapes("sgd", parameter, &[gradient, momentum_buffer])?;
    dispatch!(match [gradient, parameter, momentum_buffer] {
        Cpu(T) => update_in_place([parameter, momentum_buffer], gradient, |state, gradient| {
            cpu::step::<T>(state, gradient, step, &hyper);
        }),
        Cuda | Reference => reference::step(slot, step),
    })
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// g = 1 throughout, μ = 1/2, lr = 1: b is 1 and then 3/2.
    #[test]
    fn momentum_accumulates_as_worked_by_hand() -> Result<()> {
        for (nesterov, expected) in [(false, -1. - 1.5), (true, -1.5 - 1.75)] {
            let hyper = Hyper { lr: 1., momentum: 0.5, nesterov, weight_decay: 0. };
            let parameter = Var::new(&[0_f64], &Device::Cpu)?;
            let gradient = Tensor::new(&[1_f64], &Device::Cpu)?;
            // The first step must not read it, as 0 · NaN is NaN.
            let buffer = Var::new(&[f64::NAN], &Device::Cpu)?;
            let slot = Slot {
                parameter: &parameter,
                gradient: &gradient,
                momentum_buffer: &buffer,
                hyper,
            };
            step(&slot, 1)?;
            step(&slot, 2)?;
            assert_eq!(parameter.to_vec1::<f64>()?, [expected]);
        }
        Ok(())
    }
}
