//! `AdamW`: Adam with decoupled weight decay (Loshchilov & Hutter 2019,
//! <https://arxiv.org/abs/1711.05101>).
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g,    v ← β₂ v + (1 − β₂) g²                                 algorithm 2
//! θ ← θ − lr (m̂ / (√v̂ + ε) + λ θ),    m̂ = m / (1 − β₁ᵗ),    v̂ = v / (1 − β₂ᵗ)
//! ```
//!
//! λ is 0 for the parameters that do not decay. t counts updates, the same for every parameter.

use candle_core::Var;
use serde::{Deserialize, Serialize};
use tealight_ops::Gradients;
use tealight_ops::adamw::{self, Hyper};

use super::{ByName, DecayGroups, Optimizer};
use crate::error::Result;
use crate::run::tensors::NamedTensors;

/// `[optimizer] kind = "adamw"`
///
/// The defaults are PyTorch's, which are Adam's (Kingma & Ba 2015) with a weight decay of 0.01.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// The peak of the learning rate; the schedule scales it.
    pub lr: f64,
    /// β₁: how much of the mean gradient is kept.
    pub beta1: f64,
    /// β₂: how much of the mean squared gradient is kept.
    pub beta2: f64,
    /// ε: keeps the division finite.
    pub epsilon: f64,
    /// λ: multiplied by the learning rate, and for matrices only.
    pub weight_decay: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { lr: 1e-3, beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl Config {
    pub(super) fn validate(&self) -> Result<()> {
        super::check_lr(self.lr)?;
        super::check_kept("beta1", self.beta1)?;
        super::check_kept("beta2", self.beta2)?;
        let holds = self.epsilon.is_finite() && self.epsilon > 0.;
        super::check("epsilon", self.epsilon, holds, "must be finite and above 0")?;
        super::check_weight_decay(self.weight_decay)
    }
}

/// The optimizer and its moments.
#[derive(Debug)]
pub struct AdamW {
    config: Config,
    /// Updates done.
    step: u64,
    slots: Vec<Slot>,
    groups: DecayGroups,
}

#[derive(Debug)]
struct Slot {
    name: String,
    parameter: Var,
    first_moment: Var,
    second_moment: Var,
    weight_decay: f64,
}

impl AdamW {
    /// The optimizer of `variables`, before its first update.
    pub fn new(config: &Config, variables: Vec<(String, Var)>) -> Result<Self> {
        config.validate()?;
        let groups = DecayGroups::of(&variables);
        let slots = variables.into_iter().map(|(name, parameter)| {
            let weight_decay = if super::decays(&parameter) { config.weight_decay } else { 0. };
            let first_moment = super::zeros_like(&parameter)?;
            let second_moment = super::zeros_like(&parameter)?;
            Ok(Slot { name, parameter, first_moment, second_moment, weight_decay })
        });
        let slots = slots.collect::<Result<_>>()?;
        Ok(Self { config: config.clone(), step: 0, slots, groups })
    }

    /// The moments by their names in the state.
    fn memory(&self) -> Vec<(String, Var)> {
        let moments = |slot: &Slot| {
            let Slot { name, first_moment, second_moment, .. } = slot;
            [
                (format!("{name}.first_moment"), first_moment.clone()),
                (format!("{name}.second_moment"), second_moment.clone()),
            ]
        };
        self.slots.iter().flat_map(moments).collect()
    }
}

impl Optimizer for AdamW {
    fn step(&mut self, gradients: &Gradients, lr: f64) -> Result<()> {
        let Config { beta1, beta2, epsilon, .. } = self.config;
        let gradients = ByName::of(gradients);
        let step = self.step + 1;
        for slot in &self.slots {
            let Slot { name, parameter, first_moment, second_moment, weight_decay } = slot;
            let Some(gradient) = gradients.get(name, parameter)? else { continue };
            let hyper = Hyper { lr, beta1, beta2, epsilon, weight_decay: *weight_decay };
            adamw::step(parameter, gradient, first_moment, second_moment, step, &hyper)?;
        }
        self.step = step;
        Ok(())
    }

    fn state(&self) -> NamedTensors {
        super::state(self.step, self.memory())
    }

    fn load_state(&mut self, state: &NamedTensors) -> Result<()> {
        self.step = super::load_state(&self.memory(), state)?;
        Ok(())
    }

    fn groups(&self) -> &DecayGroups {
        &self.groups
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{gradients, values, variables};
    use super::*;

    const TOLERANCE: f64 = 1e-14;

    /// Algorithm 2 of the paper for one number, as `torch.optim.AdamW` computes it.
    struct Scalar {
        theta: f64,
        m: f64,
        v: f64,
    }

    impl Scalar {
        fn step(&mut self, g: f64, t: i32, lr: f64, weight_decay: f64) {
            self.theta -= lr * weight_decay * self.theta;
            self.m = 0.9 * self.m + 0.1 * g;
            self.v = 0.999 * self.v + 0.001 * g * g;
            let (m_hat, v_hat) =
                (self.m / (1. - 0.9_f64.powi(t)), self.v / (1. - 0.999_f64.powi(t)));
            self.theta -= lr * m_hat / (v_hat.sqrt() + 1e-8);
        }
    }

    #[test]
    fn three_updates_follow_the_paper() {
        let variables = variables();
        let config = Config { weight_decay: 0.1, ..Config::default() };
        let mut optimizer = AdamW::new(&config, variables.clone()).unwrap();
        let mut expected: Vec<Scalar> =
            values(&variables).into_iter().map(|theta| Scalar { theta, m: 0., v: 0. }).collect();
        for (t, lr) in [(1, 0.1), (2, 0.05), (3, 0.2)] {
            optimizer.step(&gradients(&variables), lr).unwrap();
            for (index, scalar) in expected.iter_mut().enumerate() {
                let (curvature, weight_decay) = if index < 6 { (0.7, 0.1) } else { (-1.3, 0.) };
                scalar.step(curvature * scalar.theta + 1., t, lr, weight_decay);
            }
            for (actual, Scalar { theta, .. }) in values(&variables).into_iter().zip(&expected) {
                assert!((actual - theta).abs() < TOLERANCE, "{actual} is not {theta} at t = {t}");
            }
        }
        assert_eq!(optimizer.state()["step"].to_scalar::<i64>().unwrap(), 3);
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        let message = |config: Config| AdamW::new(&config, variables()).unwrap_err().to_string();
        let config = Config::default;
        assert_eq!(
            message(Config { beta2: 1., ..config() }),
            "`optimizer.beta2` = 1 must be at least 0 and below 1"
        );
        assert!(message(Config { lr: 0., ..config() }).contains("`optimizer.lr` = 0"));
        assert!(message(Config { epsilon: 0., ..config() }).contains("`optimizer.epsilon`"));
        assert!(message(Config { beta1: f64::NAN, ..config() }).contains("= NaN"));
        assert!(message(Config { weight_decay: -1., ..config() }).contains("= -1"));
    }
}
