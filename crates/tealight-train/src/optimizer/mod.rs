//! Optimizers: update rules, and the parameters that they update.
//!
//! The arithmetic is in `tealight_ops`. An [`OptimizerKind`] says which state a parameter needs and how parameters
//! are updated, all in one call where there is a fused kernel. [`Optimizer`] finds the gradients by name and turns
//! states and the number of updates into the tensors of a checkpoint.

use std::collections::BTreeMap;
use std::fmt::Display;

use candle_core::{DType, Device, Shape, Tensor, Var};
use tealight_ops::Gradients;

use crate::checks;
use crate::error::{Error, Result};
use crate::storage::tensors::{self, NamedTensors};

pub mod adafactor;
pub mod adamw;
pub mod ema;
pub mod fine_tuning;
mod kind;
pub mod lamb;
pub mod lion;
pub mod muon;
pub mod parameter;
pub mod schedule;
pub mod sgd;

pub use kind::{OptimizerKind, State, Step, Update};
pub use parameter::{DecayGroup, DecayGroups, Parameter};

tealight_model::choice! {
    /// `[optimizer]`: the update rule.
    pub enum OptimizerConfig: OptimizerKind = "adamw" {
        /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
        "adamw" => AdamW(adamw::Config),
        /// Stochastic gradient descent with momentum (Sutskever et al. 2013).
        "sgd" => Sgd(sgd::Config),
        /// The sign of a momentum: every element changes by the learning rate; half the memory of Adam (Chen et al.
        /// 2023).
        "lion" => Lion(lion::Config),
        /// Orthogonal momentum for matrices, AdamW for the rest (Jordan et al. 2024).
        "muon" => Muon(muon::Config),
        /// Adam with a second moment of rank one and no first moment (Shazeer & Stern 2018).
        "adafactor" => Adafactor(adafactor::Config),
        /// Adam whose updates are scaled to the norm of the parameter (You et al. 2020).
        "lamb" => Lamb(lamb::Config),
    }
}

impl OptimizerConfig {
    /// The optimizer of `parameters`, before its first update.
    pub fn build(&self, parameters: Vec<Parameter>) -> Result<Optimizer> {
        self.settings().validate()?;
        self.settings().check(&parameters)?;
        let with_state = |parameter: Parameter| {
            let state = self.settings().state(&parameter)?;
            Ok((parameter, state))
        };
        let parameters = parameters.into_iter().map(with_state).collect::<Result<_>>()?;
        Ok(Optimizer { config: self.clone(), step: 0, parameters, is_part: false })
    }
}

/// Updates the parameters that it was built with.
#[derive(Debug)]
pub struct Optimizer {
    config: OptimizerConfig,
    /// Updates done.
    step: u64,
    /// In order of creation, each with its state.
    parameters: Vec<(Parameter, State)>,
    /// Whether other processes update the rest of the parameters.
    is_part: bool,
}

/// The name of the number of updates in the state.
const STEP: &str = "step";

impl Optimizer {
    /// One update. A parameter without a gradient does not change, as in PyTorch.
    pub fn step(&mut self, gradients: &Gradients, lr: f64) -> Result<()> {
        self.step_scaled(gradients, 1., lr)
    }

    /// One update with the gradients multiplied by `scale`.
    ///
    /// # Errors
    /// If `gradients` lack a parameter's name; then nothing has changed.
    pub fn step_scaled(&mut self, gradients: &Gradients, scale: f64, lr: f64) -> Result<()> {
        let kind = self.config.settings();
        if scale != 1. && !kind.scales_gradients() {
            let mut scaled = gradients.clone();
            scaled.scale(scale)?;
            return self.step_scaled(&scaled, 1., lr);
        }
        let by_name: BTreeMap<_, _> = gradients.iter().collect();
        let number = self.step + 1;
        let mut updates = Vec::with_capacity(self.parameters.len());
        for (parameter, state) in &self.parameters {
            let Parameter { name, variable, lr_scale } = parameter;
            let Some(gradient) = by_name.get(name.as_str()) else {
                let (origin, expected) = ("set of gradients", variable.shape().clone());
                return Err(Error::MissingTensor { origin, name: name.clone(), expected });
            };
            let step = Step { number, lr: lr * lr_scale, gradient_scale: scale };
            updates.extend(gradient.map(|gradient| Update { parameter, gradient, state, step }));
        }
        kind.update(&updates)?;
        self.step = number;
        Ok(())
    }

    /// The tensors of a checkpoint: views of the state, so save them before the next update.
    #[expect(clippy::missing_panics_doc, reason = "a number needs hardly any memory")]
    pub fn state(&self) -> NamedTensors {
        let step = Tensor::new(self.step.cast_signed(), &Device::Cpu);
        let step = step.expect("invariant: there is room for a number on the CPU");
        let views = self.named_state().into_iter();
        let views = views.map(|(name, variable)| (name, variable.as_detached_tensor()));
        views.chain([(STEP.to_owned(), step)]).collect()
    }

    /// Restores the state of a checkpoint.
    ///
    /// # Errors
    /// If a tensor is missing, unknown or of another shape; the error names it, and nothing has changed.
    pub fn load_state(&mut self, state: &NamedTensors) -> Result<()> {
        let origin = "optimizer";
        let mut state = state.clone();
        let step = match state.remove(STEP) {
            Some(step) if step.rank() == 0 => step.to_dtype(DType::I64)?.to_scalar::<i64>()?,
            _ => {
                let (name, expected) = (STEP.to_owned(), Shape::from(()));
                return Err(Error::MissingTensor { origin, name, expected });
            }
        };
        let named = self.named_state();
        if self.is_part {
            state.retain(|name, _| named.iter().any(|(own, _)| own == name));
        }
        let targets = named.iter().map(|(name, variable)| (name.as_str(), *variable));
        tensors::assign(origin, targets, &state)?;
        self.step = step.cast_unsigned();
        Ok(())
    }

    /// Keeps the parameters of these names and their state; other processes update the other parameters.
    pub(crate) fn keep_only(&mut self, names: &[String]) {
        self.parameters.retain(|(parameter, _)| names.contains(&parameter.name));
        self.is_part = true;
    }

    /// The parameters, in order of creation.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.parameters.iter().map(|(parameter, _)| parameter)
    }

    /// Which parameters decay.
    pub fn decay_groups(&self) -> DecayGroups {
        DecayGroups::from_parameters(self.parameters())
    }

    /// The state of all parameters: `layer.0.norm.weight.first_moment`.
    fn named_state(&self) -> Vec<(String, &Var)> {
        let all = self.parameters.iter().flat_map(|(parameter, state)| {
            state
                .iter()
                .map(|(suffix, variable)| (format!("{}.{suffix}", parameter.name), variable))
        });
        all.collect()
    }
}

/// As [`checks::check`], for a setting of `[optimizer]` or of a table in it: `check("adamw.lr", …)`.
fn check<T: Copy + Display>(
    key: &str,
    value: T,
    is_valid: impl FnOnce(T) -> bool,
    rule: &str,
) -> Result<()> {
    checks::check(&format!("optimizer.{key}"), value, is_valid, rule)
}

fn check_positive(key: &str, value: f64) -> Result<()> {
    check(key, value, |value| value.is_finite() && value > 0., "must be finite and above 0")
}

/// Checks β or μ, the rate at which a moving average decays.
fn check_decay_rate(key: &str, value: f64) -> Result<()> {
    check(key, value, |value| (0. ..1.).contains(&value), "must be at least 0 and below 1")
}

fn check_weight_decay(key: &str, weight_decay: f64) -> Result<()> {
    let is_valid = |value: f64| value.is_finite() && value >= 0.;
    check(key, weight_decay, is_valid, "must be finite and not negative")
}

#[cfg(test)]
mod tests {
    use tealight_ops::threads;

    use super::*;
    use crate::storage::tensors::tests::all_bits;

    /// A matrix `weight (2, 3)` and a vector `bias (3)`.
    pub(super) fn variables() -> Vec<Parameter> {
        let weight = Var::new(&[[0.5_f64, -1., 2.], [0.25, 3., -0.75]], &Device::Cpu).unwrap();
        let bias = Var::new(&[1_f64, -2., 0.5], &Device::Cpu).unwrap();
        let parameter = |(name, variable): (&str, _)| Parameter::new(name.to_owned(), variable);
        [("layer.0.weight", weight), ("layer.0.bias", bias)].map(parameter).into()
    }

    /// The gradients of Σ cᵢ θᵢ²/2 + θᵢ at the variables' values, where the c differ.
    pub(super) fn gradients(parameters: &[Parameter]) -> Gradients {
        let mut loss = Tensor::zeros((), DType::F64, &Device::Cpu).unwrap();
        for (Parameter { variable, .. }, scale) in parameters.iter().zip([0.7, -1.3]) {
            let curved = (variable.sqr().unwrap() * (scale / 2.)).unwrap();
            let term = (curved + variable.as_tensor()).unwrap().sum_all().unwrap();
            loss = (loss + term).unwrap();
        }
        tealight_ops::backward(&loss, named(parameters)).unwrap()
    }

    fn named(parameters: &[Parameter]) -> impl Iterator<Item = (&str, &Tensor)> {
        parameters.iter().map(|parameter| (&*parameter.name, parameter.variable.as_tensor()))
    }

    /// All values, the weight's before the bias's.
    pub(super) fn values(parameters: &[Parameter]) -> Vec<f64> {
        let values = parameters.iter().map(|p| p.variable.flatten_all()?.to_vec1::<f64>());
        values.collect::<candle_core::Result<Vec<_>>>().unwrap().concat()
    }

    /// The tensors that a checkpoint file would hold.
    fn copies(tensors: &NamedTensors) -> NamedTensors {
        let copy = |(name, tensor): (&String, &Tensor)| (name.clone(), tensor.copy().unwrap());
        tensors.iter().map(copy).collect()
    }

    fn run(optimizer: &mut Optimizer, parameters: &[Parameter], n_steps: usize) {
        for step in 0..n_steps {
            optimizer.step(&gradients(parameters), 0.1 / (step + 1) as f64).unwrap();
        }
    }

    fn every_kind() -> impl Iterator<Item = OptimizerConfig> {
        let kinds = OptimizerConfig::KINDS.iter();
        let kinds = kinds.map(|kind| OptimizerConfig::default_of(kind.name).unwrap());
        let nor_muon = muon::Config { row_beta: Some(0.95), ..muon::Config::default() };
        kinds.chain([OptimizerConfig::Muon(nor_muon)])
    }

    #[test]
    fn an_optimizer_that_loads_its_state_continues_bit_for_bit() {
        for config in every_kind() {
            let there = variables();
            let mut first = config.build(there.clone()).unwrap();
            run(&mut first, &there, 3);
            let here = variables();
            for (here, there) in here.iter().zip(&there) {
                here.variable.set(&there.variable).unwrap();
            }
            let mut second = config.build(here.clone()).unwrap();
            second.load_state(&copies(&first.state())).unwrap();
            run(&mut first, &there, 2);
            run(&mut second, &here, 2);
            assert_eq!(values(&here), values(&there), "{config:?}");
            assert_eq!(all_bits(&first.state()), all_bits(&second.state()));
        }
    }

    #[test]
    fn a_state_that_does_not_fit_is_refused_by_name_and_changes_nothing() {
        for config in every_kind() {
            let mut optimizer = config.build(variables()).unwrap();
            run(&mut optimizer, &variables(), 1);
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
            let DecayGroups { decayed, undecayed } = optimizer.decay_groups();
            assert_eq!(
                (decayed.names.as_slice(), decayed.n_parameters),
                (&["layer.0.weight".into()][..], 6)
            );
            assert_eq!(
                (undecayed.names.as_slice(), undecayed.n_parameters),
                (&["layer.0.bias".into()][..], 3)
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
            assert!(others.unwrap_err().to_string().contains("no tensor `layer.0.weight`"));
            let one = Var::new(1_f64, &Device::Cpu).unwrap();
            let absent = tealight_ops::backward(one.as_tensor(), named(&variables)).unwrap();
            optimizer.step(&absent, 0.1).unwrap();
            assert_eq!(values(&variables), before);
        }
    }

    /// Updates of a fraction of the rate, as if the schedule had given it.
    #[test]
    fn a_scale_is_a_share_of_the_learning_rate() {
        for config in every_kind() {
            let (scaled, plain) = (variables(), variables());
            let with = |lr_scale| move |p: Parameter| Parameter { lr_scale, ..p };
            let mut first = config.build(scaled.iter().cloned().map(with(0.25)).collect()).unwrap();
            let mut second = config.build(plain.clone()).unwrap();
            for lr in [0.1, 0.02] {
                first.step(&gradients(&scaled), lr).unwrap();
                second.step(&gradients(&plain), lr * 0.25).unwrap();
            }
            assert_eq!(values(&scaled), values(&plain), "{config:?}");
        }
    }

    #[test]
    fn the_number_of_threads_does_not_show() {
        for config in every_kind() {
            let with = |n_threads| {
                threads::with(n_threads, || {
                    let weight = Tensor::arange(0_f32, 700. * 301., &Device::Cpu).unwrap();
                    let weight = weight.sin().unwrap().reshape((700, 301)).unwrap();
                    let weight = Var::from_tensor(&weight).unwrap();
                    let weight = Parameter::new("layer.0.weight".into(), weight);
                    let mut optimizer = config.build(vec![weight.clone()]).unwrap();
                    for _ in 0..2 {
                        let loss = weight.variable.sqr().unwrap().sum_all().unwrap();
                        let named = [(&*weight.name, weight.variable.as_tensor())];
                        let gradients = tealight_ops::backward(&loss, named).unwrap();
                        optimizer.step(&gradients, 0.1).unwrap();
                    }
                    weight.variable.flatten_all().unwrap().to_vec1::<f32>().unwrap()
                })
            };
            let one = with(1);
            assert!(one == with(2) && one == with(5), "{config:?}");
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
