//! Stochastic gradient descent with momentum (Sutskever et al. 2013,
//! <https://proceedings.mlr.press/v28/sutskever13.html>).
//!
//! ```text
//! b ← μ b + g   (b ← g at the first step)
//! θ ← θ − lr (d + λ θ),   d = b,  or g + μ b under Nesterov's variant
//! ```
//!
//! As `torch.optim.SGD`, where the velocity is not multiplied by lr, but for the weight decay: here
//! it is decoupled, as in [`adamw`](crate::optimizers::adamw), and does not enter the momentum. (`torch` adds
//! λθ to g.)

mod cpu;
pub mod reference;

use candle_core::{Result, Tensor, Var, bail};

use crate::backend::buffer::{View, with_slice_mut};
use crate::backend::choice::dispatch;
use crate::backend::element::Element;

/// Hyper-parameters of one update, under the names of `torch.optim.SGD`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// The step size, schedule included.
    pub lr: f64,
    /// μ: how much of the momentum buffer is kept. 0 is plain gradient descent.
    pub momentum: f64,
    /// Nesterov's variant: take the gradient's step as if the momentum's had been taken already.
    pub nesterov: bool,
    /// λ: multiplied by `lr`.
    pub weight_decay: f64,
}

/// Update number `step`, counted from 1, of one parameter and its momentum buffer, in place.
///
/// All three tensors have the parameter's shape. What the buffer holds at step 1 is not read.
///
/// # Errors
/// If a shape differs, or `step` is 0.
pub fn step(
    parameter: &Var,
    gradient: &Tensor,
    momentum_buffer: &Var,
    step: u64,
    hyper: &Hyper,
) -> Result<()> {
    if step == 0 {
        bail!("sgd step 0: steps count from 1")
    }
    for operand in [gradient, momentum_buffer] {
        if operand.dims() != parameter.dims() {
            bail!("sgd of a parameter {:?} with {:?}", parameter.shape(), operand.shape())
        }
    }
    let state = [parameter, momentum_buffer].map(Var::as_tensor);
    let [theta, buffer] = state;
    if !state.iter().all(|tensor| tensor.is_contiguous()) {
        return reference::step(parameter, gradient, momentum_buffer, step, hyper);
    }
    dispatch!(match [theta, gradient, buffer] {
        Cpu(T) => on_cpu::<T>(state, gradient, step, hyper),
        Cuda | Reference => reference::step(parameter, gradient, momentum_buffer, step, hyper),
    })
}

fn on_cpu<T: Element>(
    [parameter, momentum_buffer]: [&Tensor; 2],
    gradient: &Tensor,
    step: u64,
    hyper: &Hyper,
) -> Result<()> {
    let factors = cpu::Factors::<T>::of(hyper);
    let gradient = gradient.contiguous()?;
    let gradient = View::of(&gradient)?;
    with_slice_mut(parameter, |parameter| {
        with_slice_mut(momentum_buffer, |buffer| {
            if step == 1 {
                buffer.fill(T::ZERO);
            }
            cpu::step(parameter, &gradient, buffer, &factors);
            Ok(())
        })
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
            // Not read at the first step, not even to be multiplied by zero.
            let buffer = Var::new(&[f64::NAN], &Device::Cpu)?;
            super::step(&parameter, &gradient, &buffer, 1, &hyper)?;
            super::step(&parameter, &gradient, &buffer, 2, &hyper)?;
            assert_eq!(parameter.to_vec1::<f64>()?, [expected]);
        }
        Ok(())
    }
}
