//! Adafactor: Adam with a second moment of rank one (Shazeer and Stern 2018,
//! <https://arxiv.org/abs/1804.04235>).
//!
//! ```text
//! R ← β R + (1 − β) (G² + ε₁) 1,   C ← β C + (1 − β) 1ᵀ (G² + ε₁)          algorithm 4
//! V = R C / 1ᵀR          or, of a vector,  V ← β V + (1 − β) (G² + ε₁)     algorithm 5
//! U = G / √V,            Û = U / max(1, RMS(U) / d)                        §6
//! X ← X − α Û,           α = max(ε₂, RMS(X)) ρ                             §8
//! β = 1 − tᶜ, where the paper's c is −0.8                                  §7.2
//! ```
//!
//! A tensor with more than two axes is a batch of matrices (its last two axes) with one common RMS.
//!
//! Cost: rows + columns numbers of state per matrix, rows × columns for U during the update; four passes.

mod cpu;
pub mod reference;

use candle_core::{Result, Shape, Tensor, Var, bail};

use crate::backend::choice::dispatch;
use crate::backend::element::Element;
use crate::optimizers::update::{check_step, update_in_place};

/// Hyper-parameters of one update, under the paper's names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hyper {
    /// ρ: the relative step size, schedule included; or α itself, see `relative_step`.
    pub lr: f64,
    /// c: β = 1 − tᶜ, negative.
    pub decay: f64,
    /// ε₁: keeps V positive.
    pub epsilon1: f64,
    /// ε₂: the lower bound of RMS(X) in α.
    pub epsilon2: f64,
    /// d: the largest RMS of an update.
    pub clip: f64,
    /// Whether α = max(ε₂, RMS(X)) `lr`, or α = `lr`.
    pub relative_step: bool,
    /// Multiplied by α. The paper has none.
    pub weight_decay: f64,
}

impl Hyper {
    fn beta(&self, step: u64) -> f64 {
        1. - (step as f64).powf(self.decay)
    }

    /// α, for a parameter of this RMS.
    fn step_size(&self, rms: f64) -> f64 {
        if self.relative_step { self.lr * rms.max(self.epsilon2) } else { self.lr }
    }

    /// max(1, RMS(U) / d)
    fn clipping(&self, rms: f64) -> f64 {
        (rms / self.clip).max(1.)
    }
}

/// The moving average of squared gradients.
#[derive(Clone, Debug)]
pub enum SecondMoment {
    /// Factors R and C, for matrices `(.., rows, columns)`.
    Factored {
        /// R: `(.., rows)`
        rows: Var,
        /// C: `(.., columns)`
        columns: Var,
    },
    /// V in the shape of the parameter, for a vector or a number.
    Full(Var),
}

impl SecondMoment {
    /// The state of `parameter` before its first update.
    ///
    /// # Errors
    /// If memory is exhausted.
    pub fn zeros(parameter: &Var) -> Result<Self> {
        let zeros =
            |dims: Vec<usize>| Var::zeros(Shape::from(dims), parameter.dtype(), parameter.device());
        match parameter.dims() {
            [matrices @ .., rows, columns] => Ok(Self::Factored {
                rows: zeros([matrices, &[*rows]].concat())?,
                columns: zeros([matrices, &[*columns]].concat())?,
            }),
            vector => Ok(Self::Full(zeros(vector.to_vec())?)),
        }
    }

    fn parts(&self) -> Vec<&Var> {
        match self {
            Self::Factored { rows, columns } => vec![rows, columns],
            Self::Full(all) => vec![all],
        }
    }

    fn fits(&self, parameter: &Var) -> bool {
        match (self, parameter.dims()) {
            (Self::Factored { rows, columns }, [matrices @ .., n_rows, n_columns]) => {
                rows.dims() == [matrices, &[*n_rows]].concat()
                    && columns.dims() == [matrices, &[*n_columns]].concat()
            }
            (Self::Full(all), dims) => dims.len() < 2 && all.dims() == dims,
            (Self::Factored { .. }, _) => false,
        }
    }
}

/// A parameter, its gradient of the same shape, and its second moment.
#[derive(Clone, Copy, Debug)]
pub struct Slot<'a> {
    /// X.
    pub parameter: &'a Var,
    /// G.
    pub gradient: &'a Tensor,
    /// R and C, or V; see [`SecondMoment::zeros`].
    pub second_moment: &'a SecondMoment,
    /// The hyper-parameters of this parameter.
    pub hyper: Hyper,
}

/// Update number `step`, counted from 1, of `slot`, in place.
///
/// # Errors
/// If shapes differ, or `step` is 0.
pub fn step(slot: &Slot<'_>, step: u64) -> Result<()> {
    let Slot { parameter, gradient, second_moment, .. } = *slot;
    check_step("adafactor", step)?;
    if gradient.dims() != parameter.dims() || !second_moment.fits(parameter) {
        let gradient = gradient.shape();
        bail!(
            "adafactor of a parameter {:?} with {gradient:?}, {second_moment:?}: expected a \
             gradient of the same shape, and a second moment as `SecondMoment::zeros` makes it",
            parameter.shape()
        )
    }
    let mut operands = vec![gradient, parameter.as_tensor()];
    operands.extend(second_moment.parts().into_iter().map(Var::as_tensor));
    dispatch!(match operands {
        Cpu(T) => on_cpu::<T>(slot, step),
        Cuda | Reference => reference::step(slot, step),
    })
}

fn on_cpu<T: Element>(slot: &Slot<'_>, step: u64) -> Result<()> {
    let Slot { parameter, gradient, second_moment, hyper } = *slot;
    let (beta, epsilon) = (hyper.beta(step), hyper.epsilon1);
    match second_moment {
        SecondMoment::Full(all) => {
            update_in_place::<T, 2>([parameter, all], gradient, |[parameter, moment], gradient| {
                let (update, norm) = cpu::update_full(gradient, moment, beta, epsilon);
                cpu::step(parameter, &update, norm, &hyper);
            })
        }
        SecondMoment::Factored { rows, columns } => {
            let n_columns = parameter.dims().last().copied().unwrap_or(1);
            let n_rows = parameter.elem_count() / columns.elem_count();
            let state = [parameter, rows, columns];
            update_in_place::<T, 3>(state, gradient, |[parameter, rows, columns], gradient| {
                let (moments, sizes) = ([rows, columns], [n_rows, n_columns]);
                let (update, norm) = cpu::update_factored(gradient, moments, sizes, beta, epsilon);
                cpu::step(parameter, &update, norm, &hyper);
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;

    const HYPER: Hyper = Hyper {
        lr: 0.1,
        decay: -0.8,
        epsilon1: 1e-30,
        epsilon2: 1e-3,
        clip: 1.,
        relative_step: true,
        weight_decay: 0.,
    };

    fn update(
        parameter: &Var,
        gradient: &Tensor,
        second_moment: &SecondMoment,
        number: u64,
    ) -> Result<()> {
        step(&Slot { parameter, gradient, second_moment, hyper: HYPER }, number)
    }

    /// A gradient of rank one has a second moment of rank one: U is its sign, of RMS 1.
    #[test]
    fn the_first_step_against_a_gradient_of_rank_one_is_its_sign() -> Result<()> {
        let parameter = Var::new(&[[3_f64, -3., 3.], [3., 3., 3.]], &Device::Cpu)?;
        let gradient = Tensor::new(&[[2_f64, -4., 6.], [1e-5, -2e-5, 3e-5]], &Device::Cpu)?;
        update(&parameter, &gradient, &SecondMoment::zeros(&parameter)?, 1)?;
        let expected = [[2.7, -2.7, 2.7], [2.7, 3.3, 2.7]];
        for (actual, expected) in parameter.to_vec2::<f64>()?.concat().iter().zip(expected.concat())
        {
            assert!((actual - expected).abs() < 1e-12, "{actual} is not {expected}");
        }
        Ok(())
    }

    #[test]
    fn a_gradient_of_zero_moves_nothing() -> Result<()> {
        for dims in [&[2, 3][..], &[3]] {
            let parameter = Var::ones(dims, DType::F32, &Device::Cpu)?;
            let moment = SecondMoment::zeros(&parameter)?;
            update(&parameter, &parameter.zeros_like()?, &moment, 1)?;
            assert!(parameter.flatten_all()?.to_vec1::<f32>()?.iter().all(|&x| x == 1.));
        }
        Ok(())
    }

    #[test]
    fn shapes_and_step_zero_are_refused() -> Result<()> {
        let var = |dims: &[usize]| Var::zeros(dims, DType::F32, &Device::Cpu);
        let (parameter, other) = (var(&[2, 3])?, var(&[3, 2])?);
        let moment = SecondMoment::zeros(&parameter)?;
        assert!(update(&parameter, &parameter, &moment, 0).is_err());
        assert!(update(&parameter, &other, &moment, 1).is_err());
        for other in [SecondMoment::zeros(&other)?, SecondMoment::Full(var(&[2, 3])?)] {
            assert!(update(&parameter, &parameter, &other, 1).is_err());
        }
        let vector = var(&[3])?;
        assert!(update(&vector, &vector, &moment, 1).is_err());
        Ok(())
    }
}
