//! Update rules, and groups of parameters that share one.

use std::collections::BTreeMap;
use std::fmt;

use candle_core::{Tensor, Var};

use super::Parameter;
use crate::error::Result;

/// How one parameter is updated from its gradient and its state.
pub trait Rule: fmt::Debug + Send {
    /// What is kept of a parameter from update to update.
    type State: fmt::Debug + Send;

    /// Whether an update multiplies gradients by [`Step::gradient_scale`] itself. Otherwise they are
    /// scaled before, in a pass of its own.
    const SCALES_GRADIENTS: bool = false;

    /// The state before the first update.
    fn state(&self, parameter: &Parameter) -> Result<Self::State>;

    /// The tensors of a state, by the suffix of their name in a checkpoint.
    fn tensors(state: &Self::State) -> Vec<(&'static str, &Var)>;

    /// Updates one parameter in place.
    fn update(&self, update: &Update<'_, Self::State>) -> Result<()>;

    /// Updates several parameters in place; in one kernel where the rule has a fused one.
    fn update_all(&self, updates: &[Update<'_, Self::State>]) -> Result<()> {
        updates.iter().try_for_each(|update| self.update(update))
    }
}

/// One update of one parameter.
#[derive(Debug)]
pub struct Update<'a, S> {
    /// θ.
    pub parameter: &'a Parameter,
    /// g, of the parameter's shape.
    pub gradient: &'a Tensor,
    /// The parameter's state.
    pub state: &'a S,
    /// The learning rate is the parameter's own: scaled by [`Parameter::lr_scale`].
    pub step: Step,
}

/// What an update has in common for all parameters.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// Counted from 1.
    pub number: u64,
    /// The learning rate.
    pub lr: f64,
    /// Factor of all gradients: clipping. 1 unless the rule [scales them](Rule::SCALES_GRADIENTS).
    pub gradient_scale: f64,
}

/// Parameters that share a rule, whichever it is.
pub trait Group: fmt::Debug + Send {
    /// Updates the parameters that have a gradient.
    fn update(&self, gradients: &BTreeMap<&str, Option<&Tensor>>, step: Step) -> Result<()>;

    /// See [`Rule::SCALES_GRADIENTS`].
    fn scales_gradients(&self) -> bool;

    /// The state of all parameters by name: `layer.0.norm.weight.first_moment`.
    fn named_state(&self) -> Vec<(String, &Var)>;
}

/// A rule with the parameters that it updates, and their states.
#[derive(Debug)]
pub struct RuleGroup<R: Rule> {
    rule: R,
    parameters: Vec<(Parameter, R::State)>,
}

impl<R: Rule + 'static> RuleGroup<R> {
    /// A group with zero states.
    pub fn boxed(rule: R, parameters: Vec<Parameter>) -> Result<Box<dyn Group>> {
        let with_state = |parameter: Parameter| {
            let state = rule.state(&parameter)?;
            Ok((parameter, state))
        };
        let parameters = parameters.into_iter().map(with_state).collect::<Result<_>>()?;
        Ok(Box::new(Self { rule, parameters }))
    }
}

impl<R: Rule> Group for RuleGroup<R> {
    fn update(&self, gradients: &BTreeMap<&str, Option<&Tensor>>, step: Step) -> Result<()> {
        let updates = self.parameters.iter().filter_map(|(parameter, state)| {
            let gradient = (*gradients.get(parameter.name.as_str())?)?;
            let step = Step { lr: step.lr * parameter.lr_scale, ..step };
            Some(Update { parameter, gradient, state, step })
        });
        self.rule.update_all(&updates.collect::<Vec<_>>())
    }

    fn scales_gradients(&self) -> bool {
        R::SCALES_GRADIENTS
    }

    fn named_state(&self) -> Vec<(String, &Var)> {
        let of_one = |(parameter, state)| -> Vec<(String, &Var)> {
            let Parameter { name, .. }: &Parameter = parameter;
            let tensors = R::tensors(state).into_iter();
            tensors.map(|(suffix, variable)| (format!("{name}.{suffix}"), variable)).collect()
        };
        self.parameters
            .iter()
            .map(|(parameter, state)| (parameter, state))
            .flat_map(of_one)
            .collect()
    }
}
