//! `AdamW`: Adam with decoupled weight decay (Loshchilov & Hutter 2019,
//! <https://arxiv.org/abs/1711.05101>).
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g,    v ← β₂ v + (1 − β₂) g²                                 algorithm 2
//! θ ← θ − lr (m̂ / (√v̂ + ε) + λ θ),    m̂ = m / (1 − β₁ᵗ),    v̂ = v / (1 − β₂ᵗ)
//! ```
//!
//! λ is 0 for the parameters that do not decay. t counts updates, the same for every parameter.

use candle_core::{Tensor, Var};
use serde::{Deserialize, Serialize};
use tealight_ops::adamw::{self, Hyper, Slot};

use super::{AtOnce, OptimizerKind, Parameter, Rule};
use crate::error::Result;

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
    /// Checks the settings of a table in `[optimizer]` whose keys begin with `prefix`.
    pub(super) fn validate_in(&self, prefix: &str) -> Result<()> {
        let key = |name: &str| format!("{prefix}{name}");
        super::check_positive(&key("lr"), self.lr)?;
        super::check_kept(&key("beta1"), self.beta1)?;
        super::check_kept(&key("beta2"), self.beta2)?;
        super::check_positive(&key("epsilon"), self.epsilon)?;
        super::check_weight_decay(&key("weight_decay"), self.weight_decay)
    }
}

impl OptimizerKind for Config {
    fn validate(&self) -> Result<()> {
        self.validate_in("")
    }

    fn peak_lr(&self) -> f64 {
        self.lr
    }

    fn rule(&self, parameter: &Parameter) -> Result<Box<dyn Rule>> {
        Ok(Box::new(AdamW::new(self, parameter)?))
    }
}

/// A parameter and its moments.
#[derive(Debug)]
pub(super) struct AdamW {
    config: Config,
    parameter: Var,
    first_moment: Var,
    second_moment: Var,
    weight_decay: f64,
}

impl AdamW {
    pub(super) fn new(config: &Config, parameter: &Parameter) -> Result<Self> {
        Ok(Self {
            config: config.clone(),
            first_moment: super::zeros_like(&parameter.variable)?,
            second_moment: super::zeros_like(&parameter.variable)?,
            weight_decay: parameter.decay(config.weight_decay),
            parameter: parameter.variable.clone(),
        })
    }
}

impl AdamW {
    fn slot<'a>(&'a self, gradient: &'a Tensor, lr: f64) -> Slot<'a> {
        let Self { config, parameter, first_moment, second_moment, weight_decay } = self;
        let Config { beta1, beta2, epsilon, .. } = *config;
        let weight_decay = *weight_decay;
        let hyper = Hyper { lr, beta1, beta2, epsilon, weight_decay, gradient_scale: 1. };
        Slot { parameter, gradient, first_moment, second_moment, hyper }
    }
}

impl Rule for AdamW {
    fn update(&self, gradient: &Tensor, step: u64, lr: f64) -> Result<()> {
        Ok(adamw::step_all(&[self.slot(gradient, lr)], step)?)
    }

    fn at_once<'a>(&'a self, gradient: &'a Tensor, lr: f64) -> Option<AtOnce<'a>> {
        Some(AtOnce::AdamW(self.slot(gradient, lr)))
    }

    fn is_one_of_many(&self) -> bool {
        true
    }

    fn memory(&self) -> Vec<(&'static str, &Var)> {
        vec![("first_moment", &self.first_moment), ("second_moment", &self.second_moment)]
    }
}

#[cfg(test)]
mod tests {
    use super::super::OptimizerConfig;
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
        let mut optimizer = OptimizerConfig::AdamW(config).build(variables.clone()).unwrap();
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
        let message = |config: Config| config.validate().unwrap_err().to_string();
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
