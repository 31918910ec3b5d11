//! LAMB: Adam whose update is scaled to the norm of the parameter, for large batches (You et al. 2020,
//! <https://arxiv.org/abs/1904.00962>).
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g,    v ← β₂ v + (1 − β₂) g²                                 algorithm 2
//! u = m̂ / (√v̂ + ε) + λ θ,   m̂ = m / (1 − β₁ᵗ),    v̂ = v / (1 − β₂ᵗ)
//! θ ← θ − lr φ(‖θ‖) / ‖u‖ · u,                      φ the identity
//! ```
//!
//! A layer of the paper is one of our parameters. For biases and gains, which do not decay, the factor
//! ‖θ‖ / ‖u‖ is 1, as in the authors' code: a bias that starts at 0 would hardly change otherwise. For other
//! parameters the factor is 1 if ‖θ‖ or ‖u‖ is 0.

use tealight_ops::lamb::{self, Hyper, Slot};

use super::kind::zeros;
use super::{OptimizerKind, Parameter, State, Update};
use crate::error::Result;
use crate::settings::settings;

settings! {
    /// `[optimizer] kind = "lamb"`
    ///
    /// The defaults are the paper's for BERT (§4, appendix H), except for the learning rate, which the
    /// paper scales with the square root of the batch: 5·10⁻³ is for 1,024 examples.
    pub struct Config {
        /// The peak of the learning rate; the schedule scales it.
        pub lr: f64 = 5e-3,
        /// β₁: decay of the first moment.
        pub beta1: f64 = 0.9,
        /// β₂: decay of the second moment.
        pub beta2: f64 = 0.999,
        /// ε: added to the denominator.
        pub epsilon: f64 = 1e-6,
        /// λ: weight decay, part of u; matrices only.
        pub weight_decay: f64 = 0.01,
        /// Divide by 1 − βᵗ, as algorithm 2 does. The authors' code for BERT does not; the warm-up compensates.
        pub bias_correction: bool = true,
    }
}

impl OptimizerKind for Config {
    fn validate(&self) -> Result<()> {
        super::check_positive("lr", self.lr)?;
        super::check_decay_rate("beta1", self.beta1)?;
        super::check_decay_rate("beta2", self.beta2)?;
        super::check_positive("epsilon", self.epsilon)?;
        super::check_weight_decay("weight_decay", self.weight_decay)
    }

    fn peak_lr(&self) -> f64 {
        self.lr
    }

    fn state(&self, parameter: &Parameter) -> Result<State> {
        zeros(parameter, ["first_moment", "second_moment"])
    }

    fn update(&self, updates: &[Update<'_>]) -> Result<()> {
        let Self { beta1, beta2, epsilon, bias_correction, .. } = *self;
        for update in updates {
            let Update { parameter, gradient, step, .. } = *update;
            let [first_moment, second_moment] = update.state();
            let hyper = Hyper {
                lr: step.lr,
                beta1,
                beta2,
                epsilon,
                weight_decay: parameter.decay(self.weight_decay),
                bias_correction,
                trust_ratio: parameter.decays(),
            };
            let parameter = &parameter.variable;
            let slot = Slot { parameter, gradient, first_moment, second_moment, hyper };
            lamb::step(&slot, step.number)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::OptimizerConfig;
    use super::super::tests::{gradients, values, variables};
    use super::*;

    const TOLERANCE: f64 = 1e-13;

    /// Algorithm 2 for one parameter, elementwise.
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
