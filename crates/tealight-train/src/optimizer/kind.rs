//! An update rule with its settings, and the updates that it makes.

use std::fmt;

use candle_core::{Tensor, Var};

use super::Parameter;
use crate::error::Result;

/// The settings of one kind of optimizer, and how it updates parameters from their gradients and states.
pub trait OptimizerKind: fmt::Debug + Send {
    /// Checks the settings.
    fn validate(&self) -> Result<()>;

    /// Checks the settings against the parameters that the model has.
    fn check(&self, _parameters: &[Parameter]) -> Result<()> {
        Ok(())
    }

    /// The peak of the learning rate, which the schedule scales.
    fn peak_lr(&self) -> f64;

    /// Whether an update multiplies gradients by [`Step::gradient_scale`] itself. Otherwise they are
    /// scaled before, in a pass of its own.
    fn scales_gradients(&self) -> bool {
        false
    }

    /// The state of a parameter before its first update.
    fn state(&self, parameter: &Parameter) -> Result<State>;

    /// Updates parameters in place; in one kernel where the rule has a fused one.
    fn update(&self, updates: &[Update<'_>]) -> Result<()>;
}

/// The variables of a parameter that are kept from update to update, by the suffix of their names in a checkpoint.
pub type State = Vec<(&'static str, Var)>;

/// A state of zeros, each with the shape, dtype and device of the parameter.
pub(super) fn zeros<const N: usize>(
    parameter: &Parameter,
    names: [&'static str; N],
) -> Result<State> {
    let variable = &parameter.variable;
    let zeros = || Var::zeros(variable.shape(), variable.dtype(), variable.device());
    names.into_iter().map(|name| Ok((name, zeros()?))).collect()
}

/// One update of one parameter.
#[derive(Clone, Copy, Debug)]
pub struct Update<'a> {
    /// θ.
    pub parameter: &'a Parameter,
    /// g, of the parameter's shape.
    pub gradient: &'a Tensor,
    /// The parameter's state.
    pub state: &'a [(&'static str, Var)],
    /// The learning rate is the parameter's own: scaled by [`Parameter::lr_scale`].
    pub step: Step,
}

impl<'a> Update<'a> {
    /// The tensors of the state.
    pub(super) fn state<const N: usize>(&self) -> [&'a Var; N] {
        assert_eq!(self.state.len(), N, "invariant: the state is that of the same kind");
        std::array::from_fn(|i| &self.state[i].1)
    }
}

/// The numbers of an update; all parameters share them, except that the learning rate may be scaled.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Counted from 1.
    pub number: u64,
    /// The learning rate.
    pub lr: f64,
    /// Factor of all gradients: clipping. 1 unless the kind [scales them](OptimizerKind::scales_gradients).
    pub gradient_scale: f64,
}
