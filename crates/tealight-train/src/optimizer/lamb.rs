//! LAMB: Adam whose updates are as long as the parameter, for large batches (You et al. 2020,
//! <https://arxiv.org/abs/1904.00962>).
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g,    v ← β₂ v + (1 − β₂) g²                                 algorithm 2
//! u = m̂ / (√v̂ + ε) + λ θ,   m̂ = m / (1 − β₁ᵗ),    v̂ = v / (1 − β₂ᵗ)
//! θ ← θ − lr φ(‖θ‖) / ‖u‖ · u,                      φ the identity
//! ```
//!
//! A layer of the paper is one of our parameters. For biases and gains, which do not decay, the factor
//! ‖θ‖ / ‖u‖ is 1 as in the authors' code: a bias that begins at 0 would hardly leave it. For another
//! parameter it is 1 while it, or u, is 0.

use candle_core::Var;
use serde::{Deserialize, Serialize};
use tealight_ops::lamb::{self, Hyper};

use super::{Group, OptimizerKind, Parameter, Rule, RuleGroup, Update};
use crate::error::Result;

/// `[optimizer] kind = "lamb"`
///
/// The defaults are the paper's for BERT (§4, appendix H), but for the learning rate, which it has
/// grow with the square root of the batch: 5·10⁻³ is for 1,024 examples.
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
    /// λ: a part of the update, for matrices only.
    pub weight_decay: f64,
    /// Divide by 1 − βᵗ, as algorithm 2 does. The authors' code for BERT leaves it to the warm-up.
    pub bias_correction: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            lr: 5e-3,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-6,
            weight_decay: 0.01,
            bias_correction: true,
        }
    }
}

impl OptimizerKind for Config {
    fn validate(&self) -> Result<()> {
        super::check_positive("lr", self.lr)?;
        super::check_kept("beta1", self.beta1)?;
        super::check_kept("beta2", self.beta2)?;
        super::check_positive("epsilon", self.epsilon)?;
        super::check_weight_decay("weight_decay", self.weight_decay)
    }

    fn peak_lr(&self) -> f64 {
        self.lr
    }

    fn groups(&self, parameters: Vec<Parameter>) -> Result<Vec<Box<dyn Group>>> {
        Ok(vec![RuleGroup::boxed(self.clone(), parameters)?])
    }
}

/// The moments of a parameter.
#[derive(Debug)]
pub struct State {
    /// m.
    first_moment: Var,
    /// v.
    second_moment: Var,
}

impl Rule for Config {
    type State = State;

    fn state(&self, parameter: &Parameter) -> Result<State> {
        let zeros = || super::zeros_like(&parameter.variable);
        Ok(State { first_moment: zeros()?, second_moment: zeros()? })
    }

    fn tensors(state: &State) -> Vec<(&'static str, &Var)> {
        vec![("first_moment", &state.first_moment), ("second_moment", &state.second_moment)]
    }

    fn update(&self, update: &Update<'_, State>) -> Result<()> {
        let Update { parameter, gradient, state, step } = *update;
        let Self { beta1, beta2, epsilon, bias_correction, .. } = *self;
        let hyper = Hyper {
            lr: step.lr,
            beta1,
            beta2,
            epsilon,
            weight_decay: parameter.decay(self.weight_decay),
            bias_correction,
            trust_ratio: parameter.decays(),
        };
        let State { first_moment, second_moment } = state;
        let variable = &parameter.variable;
        Ok(lamb::step(variable, gradient, first_moment, second_moment, step.number, &hyper)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::OptimizerConfig;
    use super::super::tests::{gradients, values, variables};
    use super::*;

    const TOLERANCE: f64 = 1e-13;

    /// Algorithm 2 for one parameter, a number after another.
    struct Layer {
        theta: Vec<f64>,
        m: Vec<f64>,
        v: Vec<f64>,
        curvature: f64,
        weight_decay: f64,
        adapts: bool,
    }

    impl Layer {
        fn new(theta: &[f64], curvature: f64, weight_decay: f64, adapts: bool) -> Self {
            let zeros = vec![0.; theta.len()];
            let (m, v) = (zeros.clone(), zeros);
            Self { theta: theta.to_vec(), m, v, curvature, weight_decay, adapts }
        }

        fn step(&mut self, t: i32, lr: f64, corrects: bool) {
            let mut update = Vec::new();
            for i in 0..self.theta.len() {
                let g = self.curvature * self.theta[i] + 1.;
                self.m[i] = 0.9 * self.m[i] + 0.1 * g;
                self.v[i] = 0.999 * self.v[i] + 0.001 * g * g;
                let (mut m, mut v) = (self.m[i], self.v[i]);
                if corrects {
                    (m, v) = (m / (1. - 0.9_f64.powi(t)), v / (1. - 0.999_f64.powi(t)));
                }
                update.push(m / (v.sqrt() + 1e-6) + self.weight_decay * self.theta[i]);
            }
            let norm = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let ratio = if self.adapts { norm(&self.theta) / norm(&update) } else { 1. };
            for (theta, u) in self.theta.iter_mut().zip(update) {
                *theta -= lr * ratio * u;
            }
        }
    }

    #[test]
    fn three_updates_follow_the_paper() {
        for bias_correction in [true, false] {
            let variables = variables();
            let config = Config { weight_decay: 0.1, bias_correction, ..Config::default() };
            let mut optimizer = OptimizerConfig::Lamb(config).build(variables.clone()).unwrap();
            let (weight, bias) = (&values(&variables)[..6], &values(&variables)[6..]);
            let mut layers =
                [Layer::new(weight, 0.7, 0.1, true), Layer::new(bias, -1.3, 0., false)];
            for (t, lr) in [(1, 0.1), (2, 0.05), (3, 0.2)] {
                optimizer.step(&gradients(&variables), lr).unwrap();
                for layer in &mut layers {
                    layer.step(t, lr, bias_correction);
                }
                let expected = layers.iter().flat_map(|layer| &layer.theta);
                for (actual, expected) in values(&variables).iter().zip(expected) {
                    assert!((actual - expected).abs() < TOLERANCE, "{actual} is not {expected}");
                }
            }
        }
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        let config = Config { epsilon: 0., ..Config::default() };
        let message = config.validate().unwrap_err().to_string();
        assert!(message.starts_with("`optimizer.epsilon` = 0 must"), "{message}");
    }
}
