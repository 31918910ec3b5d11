//! `AdamW`: Adam with decoupled weight decay (Loshchilov & Hutter 2019,
//! <https://arxiv.org/abs/1711.05101>).
//!
//! ```text
//! m ← β₁ m + (1 − β₁) g,    v ← β₂ v + (1 − β₂) g²                                 algorithm 2
//! θ ← θ − lr (m̂ / (√v̂ + ε) + λ θ),    m̂ = m / (1 − β₁ᵗ),    v̂ = v / (1 − β₂ᵗ)
//! ```
//!
//! λ is 0 for parameters that do not decay. t counts updates, the same for every parameter.

use tealight_ops::adamw::{self, Hyper, Slot};

use super::kind::zeros;
use super::{OptimizerKind, Parameter, State, Update};
use crate::error::Result;
use crate::settings::settings;

settings! {
    /// `[optimizer] kind = "adamw"`
    ///
    /// The defaults are PyTorch's, which are Adam's (Kingma & Ba 2015) with a weight decay of 0.01.
    pub struct Config {
        /// The peak of the learning rate; the schedule scales it.
        pub lr: f64 = 1e-3,
        /// β₁: decay of the first moment.
        pub beta1: f64 = 0.9,
        /// β₂: decay of the second moment.
        pub beta2: f64 = 0.999,
        /// ε: added to the denominator.
        pub epsilon: f64 = 1e-8,
        /// λ: weight decay, multiplied by the learning rate; matrices only.
        pub weight_decay: f64 = 0.01,
    }
}

impl Config {
    /// Checks the settings; `prefix` precedes the keys in errors.
    pub(super) fn validate_in(&self, prefix: &str) -> Result<()> {
        let key = |name: &str| format!("{prefix}{name}");
        super::check_positive(&key("lr"), self.lr)?;
        super::check_decay_rate(&key("beta1"), self.beta1)?;
        super::check_decay_rate(&key("beta2"), self.beta2)?;
        super::check_positive(&key("epsilon"), self.epsilon)?;
        super::check_weight_decay(&key("weight_decay"), self.weight_decay)
    }

    fn slot<'a>(&self, update: &Update<'a>) -> Slot<'a> {
        let Update { parameter, gradient, step, .. } = *update;
        let [first_moment, second_moment] = update.state();
        let Self { beta1, beta2, epsilon, .. } = *self;
        let (lr, gradient_scale) = (step.lr, step.gradient_scale);
        let weight_decay = parameter.decay(self.weight_decay);
        let hyper = Hyper { lr, beta1, beta2, epsilon, weight_decay, gradient_scale };
        Slot { parameter: &parameter.variable, gradient, first_moment, second_moment, hyper }
    }
}

impl OptimizerKind for Config {
    fn validate(&self) -> Result<()> {
        self.validate_in("")
    }

    fn peak_lr(&self) -> f64 {
        self.lr
    }

    fn scales_gradients(&self) -> bool {
        true
    }

    fn state(&self, parameter: &Parameter) -> Result<State> {
        zeros(parameter, ["first_moment", "second_moment"])
    }

    fn update(&self, updates: &[Update<'_>]) -> Result<()> {
        let Some(Update { step, .. }) = updates.first() else { return Ok(()) };
        let slots: Vec<_> = updates.iter().map(|update| self.slot(update)).collect();
        Ok(adamw::step_all(&slots, step.number)?)
    }
}

#[cfg(test)]
mod tests {
    use super::super::OptimizerConfig;
    use super::super::tests::{gradients, values, variables};
    use super::*;

    const TOLERANCE: f64 = 1e-14;

    /// Algorithm 2 of the paper for one scalar, as `torch.optim.AdamW` computes it.
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
