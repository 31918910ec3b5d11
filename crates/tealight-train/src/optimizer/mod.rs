//! Optimizers: how gradients change the parameters.
//!
//! The arithmetic is in `tealight-ops`. What is here is who is updated, with which weight decay, and
//! what a checkpoint must keep: the moments and the number of updates, by name.

use std::collections::BTreeMap;
use std::fmt;

use candle_core::{DType, Device, Shape, Tensor, Var};
use tealight_ops::Gradients;

use crate::error::{Error, Result};
use crate::run::tensors::{self, NamedTensors};

pub mod adamw;
pub mod sgd;

tealight_model::choice! {
    /// `[optimizer]`: how gradients change the parameters.
    pub enum OptimizerConfig {
        /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
        "adamw" => AdamW(adamw::Config),
        /// Stochastic gradient descent with momentum (Sutskever et al. 2013).
        "sgd" => Sgd(sgd::Config),
    }
}

/// Changes the parameters that it was built with.
pub trait Optimizer: fmt::Debug + Send {
    /// One update. A parameter whose gradient is absent stays as it is, as in PyTorch.
    fn step(&mut self, gradients: &Gradients, lr: f64) -> Result<()>;

    /// What a checkpoint must keep: views, not copies, so save them before the next update.
    fn state(&self) -> NamedTensors;

    /// Continues from the state of a checkpoint; an error names the tensor that does not fit, and
    /// nothing has been changed.
    fn load_state(&mut self, state: &NamedTensors) -> Result<()>;

    /// Which parameters decay.
    fn groups(&self) -> &DecayGroups;
}

impl OptimizerConfig {
    /// The optimizer of `variables`, which are named as in the gradients.
    pub fn build(&self, variables: Vec<(String, Var)>) -> Result<Box<dyn Optimizer>> {
        Ok(match self {
            Self::AdamW(config) => Box::new(adamw::AdamW::new(config, variables)?),
            Self::Sgd(config) => Box::new(sgd::Sgd::new(config, variables)?),
        })
    }

    /// Checks the settings.
    pub fn validate(&self) -> Result<()> {
        match self {
            Self::AdamW(config) => config.validate(),
            Self::Sgd(config) => config.validate(),
        }
    }

    /// The peak of the learning rate: what the schedule scales.
    pub fn peak_lr(&self) -> f64 {
        match self {
            Self::AdamW(config) => config.lr,
            Self::Sgd(config) => config.lr,
        }
    }
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self::AdamW(adamw::Config::default())
    }
}

/// Which parameters decay: matrices and embeddings do, biases and gains do not (as in nanoGPT).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecayGroups {
    /// The parameters of two and more axes.
    pub decayed: DecayGroup,
    /// The others.
    pub undecayed: DecayGroup,
}

/// One side of the split.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DecayGroup {
    /// The parameters, in order of creation.
    pub names: Vec<String>,
    /// Scalars in all of them.
    pub n_parameters: usize,
}

impl DecayGroups {
    fn of(variables: &[(String, Var)]) -> Self {
        let mut groups = Self::default();
        for (name, variable) in variables {
            let decayed = decays(variable);
            let group = if decayed { &mut groups.decayed } else { &mut groups.undecayed };
            group.names.push(name.clone());
            group.n_parameters += variable.elem_count();
        }
        groups
    }
}

fn decays(variable: &Var) -> bool {
    variable.rank() >= 2
}

/// A variable of the parameter's shape, for what is remembered of it.
fn zeros_like(parameter: &Var) -> Result<Var> {
    Ok(Var::zeros(parameter.shape(), parameter.dtype(), parameter.device())?)
}

/// Finds a parameter's gradient without walking the list for each.
struct ByName<'a>(BTreeMap<&'a str, Option<&'a Tensor>>);

impl<'a> ByName<'a> {
    fn of(gradients: &'a Gradients) -> Self {
        Self(gradients.iter().collect())
    }

    /// The gradient, which may be absent; but not the parameter, or nothing would be trained.
    fn get(&self, name: &str, parameter: &Var) -> Result<Option<&'a Tensor>> {
        self.0.get(name).copied().ok_or_else(|| Error::MissingTensor {
            origin: "set of gradients",
            name: name.to_owned(),
            expected: parameter.shape().clone(),
        })
    }
}

/// The number of updates, in the state under this name.
const STEP: &str = "step";

/// What a checkpoint must keep of an optimizer with this `memory`.
fn state(step: u64, memory: Vec<(String, Var)>) -> NamedTensors {
    let step = Tensor::new(step.cast_signed(), &Device::Cpu);
    let step = step.expect("invariant: there is room for a number on the CPU");
    let views = memory.into_iter().map(|(name, variable)| (name, variable.as_detached_tensor()));
    views.chain([(STEP.to_owned(), step)]).collect()
}

/// Copies a state into the `memory` of an optimizer, and gives the number of updates.
fn load_state(memory: &[(String, Var)], state: &NamedTensors) -> Result<u64> {
    let origin = "optimizer";
    let step = match state.get(STEP) {
        Some(step) if step.rank() == 0 => step.to_dtype(DType::I64)?.to_scalar::<i64>()?,
        _ => {
            let (name, expected) = (STEP.to_owned(), Shape::from(()));
            return Err(Error::MissingTensor { origin, name, expected });
        }
    };
    let state = state.iter().filter(|(name, _)| *name != STEP);
    let state = state.map(|(name, tensor)| (name.clone(), tensor.clone())).collect();
    let memory = memory.iter().map(|(name, variable)| (name.as_str(), variable));
    tensors::assign(origin, memory, &state)?;
    Ok(step.cast_unsigned())
}

/// Checks a setting of `[optimizer]`.
fn check(key: &str, value: f64, holds: bool, rule: &str) -> Result<()> {
    if holds {
        return Ok(());
    }
    let key = format!("optimizer.{key}");
    Err(Error::config([key.as_str()], format!("`{key}` = {value} {rule}")))
}

fn check_lr(lr: f64) -> Result<()> {
    check("lr", lr, lr.is_finite() && lr > 0., "must be finite and above 0")
}

/// β and μ: how much of the past is kept.
fn check_kept(key: &str, value: f64) -> Result<()> {
    check(key, value, (0. ..1.).contains(&value), "must be at least 0 and below 1")
}

fn check_weight_decay(weight_decay: f64) -> Result<()> {
    let holds = weight_decay.is_finite() && weight_decay >= 0.;
    check("weight_decay", weight_decay, holds, "must be finite and not negative")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tensors::tests::all_bits;

    /// A matrix `weight (2, 3)` and a vector `bias (3)`.
    pub(super) fn variables() -> Vec<(String, Var)> {
        let weight = Var::new(&[[0.5_f64, -1., 2.], [0.25, 3., -0.75]], &Device::Cpu).unwrap();
        let bias = Var::new(&[1_f64, -2., 0.5], &Device::Cpu).unwrap();
        vec![("weight".into(), weight), ("bias".into(), bias)]
    }

    /// The gradients of Σ cᵢ θᵢ²/2 + θᵢ at the variables' values, where the c differ.
    pub(super) fn gradients(variables: &[(String, Var)]) -> Gradients {
        let mut loss = Tensor::zeros((), DType::F64, &Device::Cpu).unwrap();
        for ((_, variable), scale) in variables.iter().zip([0.7, -1.3]) {
            let curved = (variable.sqr().unwrap() * (scale / 2.)).unwrap();
            let term = (curved + variable.as_tensor()).unwrap().sum_all().unwrap();
            loss = (loss + term).unwrap();
        }
        let named = variables.iter().map(|(name, variable)| (name.as_str(), variable.as_tensor()));
        tealight_ops::backward(&loss, named).unwrap()
    }

    /// All values, the weight's before the bias's.
    pub(super) fn values(variables: &[(String, Var)]) -> Vec<f64> {
        let values = variables.iter().map(|(_, variable)| variable.flatten_all()?.to_vec1::<f64>());
        values.collect::<candle_core::Result<Vec<_>>>().unwrap().concat()
    }

    /// What a checkpoint file would hold.
    fn copies(tensors: &NamedTensors) -> NamedTensors {
        let copy = |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.copy().unwrap());
        tensors.iter().map(copy).collect()
    }

    fn run(optimizer: &mut dyn Optimizer, variables: &[(String, Var)], n_steps: usize) {
        for step in 0..n_steps {
            optimizer.step(&gradients(variables), 0.1 / (step + 1) as f64).unwrap();
        }
    }

    fn every_kind() -> impl Iterator<Item = OptimizerConfig> {
        OptimizerConfig::KINDS.iter().map(|kind| OptimizerConfig::default_of(kind.name).unwrap())
    }

    #[test]
    fn an_optimizer_that_loads_its_state_continues_bit_for_bit() {
        for config in every_kind() {
            let there = variables();
            let mut first = config.build(there.clone()).unwrap();
            run(&mut *first, &there, 3);
            let here = variables();
            for ((_, here), (_, there)) in here.iter().zip(&there) {
                here.set(there).unwrap();
            }
            let mut second = config.build(here.clone()).unwrap();
            second.load_state(&copies(&first.state())).unwrap();
            run(&mut *first, &there, 2);
            run(&mut *second, &here, 2);
            assert_eq!(values(&here), values(&there), "{config:?}");
            assert_eq!(all_bits(&first.state()), all_bits(&second.state()));
        }
    }

    #[test]
    fn a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing() {
        for config in every_kind() {
            let mut optimizer = config.build(variables()).unwrap();
            run(&mut *optimizer, &variables(), 1);
            let good = copies(&optimizer.state());
            for name in good.keys() {
                let mut bad = good.clone();
                bad.remove(name);
                let message = optimizer.load_state(&bad).unwrap_err().to_string();
                assert!(message.contains(&format!("has no tensor `{name}` of shape (")));
                bad.insert(name.clone(), Tensor::zeros((7, 5), DType::F64, &Device::Cpu).unwrap());
                let message = optimizer.load_state(&bad).unwrap_err().to_string();
                assert!(message.contains(&format!("`{name}`")), "{message}");
            }
            let mut bad = good.clone();
            bad.insert("other".into(), good["step"].clone());
            assert!(optimizer.load_state(&bad).unwrap_err().to_string().contains("`other`"));
            assert_eq!(all_bits(&optimizer.state()), all_bits(&good));
        }
    }

    #[test]
    fn matrices_decay_and_vectors_do_not() {
        for config in every_kind() {
            let optimizer = config.build(variables()).unwrap();
            let DecayGroups { decayed, undecayed } = optimizer.groups();
            assert_eq!(
                (decayed.names.as_slice(), decayed.n_parameters),
                (&["weight".into()][..], 6)
            );
            assert_eq!(
                (undecayed.names.as_slice(), undecayed.n_parameters),
                (&["bias".into()][..], 3)
            );
        }
    }

    #[test]
    fn gradients_of_other_parameters_are_refused_and_absent_ones_change_nothing() {
        for config in every_kind() {
            let variables = variables();
            let mut optimizer = config.build(variables.clone()).unwrap();
            let before = values(&variables);
            let others = optimizer.step(&gradients(&variables[1..]), 0.1);
            assert!(others.unwrap_err().to_string().contains("no tensor `weight`"));
            let one = Var::new(1_f64, &Device::Cpu).unwrap();
            let named = variables.iter().map(|(name, v)| (name.as_str(), v.as_tensor()));
            let absent = tealight_ops::backward(one.as_tensor(), named).unwrap();
            optimizer.step(&absent, 0.1).unwrap();
            assert_eq!(values(&variables), before);
        }
    }

    #[test]
    fn every_kind_survives_toml() {
        for config in every_kind() {
            let text = toml::to_string(&config).unwrap();
            assert_eq!(toml::from_str::<OptimizerConfig>(&text).unwrap(), config, "{text}");
        }
    }
}
