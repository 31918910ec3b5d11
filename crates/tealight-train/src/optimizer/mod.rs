//! Optimizers: how gradients change the parameters.
//!
//! The arithmetic is in `tealight-ops`. A kind says how one parameter is updated and what has to be
//! remembered of it ([`Rule`]); [`Optimizer`] does so for all of them, and says what a checkpoint must
//! keep: the memories and the number of updates, by name.

use std::collections::BTreeMap;
use std::fmt;

use candle_core::{DType, Device, Shape, Tensor, Var};
use tealight_ops::{Gradients, adamw as adamw_ops, muon as muon_ops};

use crate::error::{Error, Result};
use crate::storage::tensors::{self, NamedTensors};

pub mod adafactor;
pub mod adamw;
pub mod ema;
pub mod fine_tuning;
pub mod lamb;
pub mod lion;
pub mod muon;
pub mod parameter;
pub mod schedule;
pub mod sgd;

pub use parameter::{DecayGroup, DecayGroups, Parameter};

tealight_model::choice! {
    /// `[optimizer]`: how gradients change the parameters.
    pub enum OptimizerConfig: OptimizerKind {
        /// Adam with decoupled weight decay (Loshchilov & Hutter 2019).
        "adamw" => AdamW(adamw::Config),
        /// Stochastic gradient descent with momentum (Sutskever et al. 2013).
        "sgd" => Sgd(sgd::Config),
        /// The sign of a momentum: steps of one size, half the memory of Adam (Chen et al. 2023).
        "lion" => Lion(lion::Config),
        /// Orthogonal momentum for matrices, AdamW for the rest (Jordan et al. 2024).
        "muon" => Muon(muon::Config),
        /// Adam with a second moment of rank one, and no first (Shazeer & Stern 2018).
        "adafactor" => Adafactor(adafactor::Config),
        /// Adam whose updates are as long as the parameter (You et al. 2020).
        "lamb" => Lamb(lamb::Config),
    }
}

/// The settings of one kind of optimizer.
pub trait OptimizerKind: fmt::Debug {
    /// Checks the settings.
    fn validate(&self) -> Result<()>;

    /// The peak of the learning rate: what the schedule scales.
    fn peak_lr(&self) -> f64;

    /// How `parameter` is updated, with nothing remembered yet.
    fn rule(&self, parameter: &Parameter) -> Result<Box<dyn Rule>>;

    /// Checks the settings against what there is to update.
    fn check(&self, _parameters: &[Parameter]) -> Result<()> {
        Ok(())
    }
}

/// How one parameter is updated, and what is remembered of it.
pub trait Rule: fmt::Debug + Send {
    /// Update number `step`, counted from 1.
    fn update(&self, gradient: &Tensor, step: u64, lr: f64) -> Result<()>;

    /// The same as one of many that are done at once, where that is faster.
    fn at_once<'a>(&'a self, _gradient: &'a Tensor, _lr: f64) -> Option<AtOnce<'a>> {
        None
    }

    /// Whether there is an [`at_once`](Self::at_once).
    fn is_one_of_many(&self) -> bool {
        false
    }

    /// What is remembered, by what follows the parameter's name in the state.
    fn memory(&self) -> Vec<(&'static str, &Var)>;
}

/// An update as one of many.
#[derive(Debug)]
pub enum AtOnce<'a> {
    /// Of [`adamw_ops::step_all`].
    AdamW(adamw_ops::Slot<'a>),
    /// Of [`muon_ops::step_all`].
    Muon(muon_ops::Slot<'a>),
}

/// Changes the parameters that it was built with.
#[derive(Debug)]
pub struct Optimizer {
    /// Updates done.
    step: u64,
    slots: Vec<Slot>,
    groups: DecayGroups,
}

#[derive(Debug)]
struct Slot {
    parameter: Parameter,
    rule: Box<dyn Rule>,
}

impl OptimizerConfig {
    /// The optimizer of `parameters`, before its first update.
    pub fn build(&self, parameters: Vec<Parameter>) -> Result<Optimizer> {
        self.validate()?;
        self.settings().check(&parameters)?;
        let groups = DecayGroups::of(&parameters);
        let slots = parameters.into_iter().map(|parameter| {
            let rule = self.settings().rule(&parameter)?;
            Ok(Slot { parameter, rule })
        });
        Ok(Optimizer { step: 0, slots: slots.collect::<Result<_>>()?, groups })
    }

    /// Checks the settings.
    pub fn validate(&self) -> Result<()> {
        self.settings().validate()
    }

    /// The peak of the learning rate: what the schedule scales.
    pub fn peak_lr(&self) -> f64 {
        self.settings().peak_lr()
    }
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self::AdamW(adamw::Config::default())
    }
}

/// The number of updates, in the state under this name.
const STEP: &str = "step";

impl Optimizer {
    /// One update. A parameter whose gradient is absent stays as it is, as in PyTorch.
    pub fn step(&mut self, gradients: &Gradients, lr: f64) -> Result<()> {
        self.step_scaled(gradients, 1., lr)
    }

    /// One update by `scale` times the gradients.
    pub fn step_scaled(&mut self, gradients: &Gradients, scale: f64, lr: f64) -> Result<()> {
        if scale != 1. && !self.slots.iter().all(|slot| slot.rule.is_one_of_many()) {
            let mut scaled = gradients.clone();
            scaled.scale(scale)?;
            return self.step_scaled(&scaled, 1., lr);
        }
        let gradients = ByName::of(gradients);
        let step = self.step + 1;
        let (mut adamw, mut muon) = (Vec::new(), Vec::new());
        for Slot { parameter, rule } in &self.slots {
            let Some(gradient) = gradients.get(parameter)? else { continue };
            let lr = lr * parameter.lr_scale;
            match rule.at_once(gradient, lr) {
                Some(AtOnce::AdamW(mut slot)) => {
                    slot.hyper.gradient_scale = scale;
                    adamw.push(slot);
                }
                Some(AtOnce::Muon(mut slot)) => {
                    slot.hyper.gradient_scale = scale;
                    muon.push(slot);
                }
                None => rule.update(gradient, step, lr)?,
            }
        }
        muon_ops::step_all(&muon)?;
        adamw_ops::step_all(&adamw, step)?;
        self.step = step;
        Ok(())
    }

    /// What a checkpoint must keep: views, not copies, so save them before the next update.
    #[expect(clippy::missing_panics_doc, reason = "a number needs hardly any memory")]
    pub fn state(&self) -> NamedTensors {
        let step = Tensor::new(self.step.cast_signed(), &Device::Cpu);
        let step = step.expect("invariant: there is room for a number on the CPU");
        let views = self.memory().into_iter();
        let views = views.map(|(name, variable)| (name, variable.as_detached_tensor()));
        views.chain([(STEP.to_owned(), step)]).collect()
    }

    /// Continues from the state of a checkpoint; an error names the tensor that does not fit, and
    /// nothing has been changed.
    pub fn load_state(&mut self, state: &NamedTensors) -> Result<()> {
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
        let memory = self.memory();
        let targets = memory.iter().map(|(name, variable)| (name.as_str(), *variable));
        tensors::assign(origin, targets, &state)?;
        self.step = step.cast_unsigned();
        Ok(())
    }

    /// What is updated, in order of creation.
    pub fn parameters(&self) -> impl Iterator<Item = &Parameter> {
        self.slots.iter().map(|slot| &slot.parameter)
    }

    /// Which parameters decay.
    pub fn groups(&self) -> &DecayGroups {
        &self.groups
    }

    /// What is remembered of each parameter, by its name in the state.
    fn memory(&self) -> Vec<(String, &Var)> {
        let mut all = Vec::new();
        for Slot { parameter, rule } in &self.slots {
            let named = |(what, variable)| (format!("{}.{what}", parameter.name), variable);
            all.extend(rule.memory().into_iter().map(named));
        }
        all
    }
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
    fn get(&self, parameter: &Parameter) -> Result<Option<&'a Tensor>> {
        let Parameter { name, variable, .. } = parameter;
        self.0.get(name.as_str()).copied().ok_or_else(|| Error::MissingTensor {
            origin: "set of gradients",
            name: name.clone(),
            expected: variable.shape().clone(),
        })
    }
}

/// Checks a setting of `[optimizer]`, or of a table in it: `check("adamw.lr", …)`.
fn check(key: &str, value: f64, holds: bool, rule: &str) -> Result<()> {
    if holds {
        return Ok(());
    }
    let key = format!("optimizer.{key}");
    Err(Error::config([key.as_str()], format!("`{key}` = {value} {rule}")))
}

fn check_positive(key: &str, value: f64) -> Result<()> {
    check(key, value, value.is_finite() && value > 0., "must be finite and above 0")
}

/// β and μ: how much of the past is kept.
fn check_kept(key: &str, value: f64) -> Result<()> {
    check(key, value, (0. ..1.).contains(&value), "must be at least 0 and below 1")
}

fn check_weight_decay(key: &str, weight_decay: f64) -> Result<()> {
    let holds = weight_decay.is_finite() && weight_decay >= 0.;
    check(key, weight_decay, holds, "must be finite and not negative")
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

    /// What a checkpoint file would hold.
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
        OptimizerConfig::KINDS.iter().map(|kind| OptimizerConfig::default_of(kind.name).unwrap())
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
            let DecayGroups { decayed, undecayed } = optimizer.groups();
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
