//! Lion: the sign of a momentum (Chen et al. 2023, <https://arxiv.org/abs/2302.06675>).
//!
//! ```text
//! c = β₁ m + (1 − β₁) g                                                            algorithm 2
//! θ ← θ − lr (sign(c) + λ θ)
//! m ← β₂ m + (1 − β₂) g
//! ```
//!
//! Every element changes by lr, so lr should be 3 to 10 times smaller than `AdamW`'s, and λ larger by the same
//! factor (§5). λ is 0 for the parameters that do not decay.

use tealight_ops::lion::{self, Hyper};

use super::kind::zeros;
use super::{OptimizerKind, Parameter, State, Update};
use crate::error::Result;
use crate::settings::settings;

settings! {
    /// `[optimizer] kind = "lion"`
    ///
    /// β₁ and β₂ are the paper's. The learning rate and the weight decay are those of our `AdamW` divided
    /// and multiplied by 10.
    pub struct Config {
        /// The peak of the learning rate; the schedule scales it.
        pub lr: f64 = 1e-4,
        /// β₁: weight of the momentum in the sign.
        pub beta1: f64 = 0.9,
        /// β₂: decay of the momentum.
        pub beta2: f64 = 0.99,
        /// λ: weight decay, multiplied by the learning rate; matrices only.
        pub weight_decay: f64 = 0.1,
    }
}

impl OptimizerKind for Config {
    fn validate(&self) -> Result<()> {
        super::check_positive("lr", self.lr)?;
        super::check_decay_rate("beta1", self.beta1)?;
        super::check_decay_rate("beta2", self.beta2)?;
        super::check_weight_decay("weight_decay", self.weight_decay)
    }

    fn peak_lr(&self) -> f64 {
        self.lr
    }

    fn state(&self, parameter: &Parameter) -> Result<State> {
        zeros(parameter, ["momentum"])
    }

    fn update(&self, updates: &[Update<'_>]) -> Result<()> {
        let Self { beta1, beta2, .. } = *self;
        for update in updates {
            let Update { parameter, gradient, step, .. } = *update;
            let [momentum] = update.state();
            let weight_decay = parameter.decay(self.weight_decay);
            let hyper = Hyper { lr: step.lr, beta1, beta2, weight_decay };
            lion::step(&parameter.variable, gradient, momentum, &hyper)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::OptimizerConfig;
    use super::super::tests::{gradients, values, variables};
    use super::*;

    const TOLERANCE: f64 = 1e-14;

    #[test]
    fn three_updates_follow_the_paper() {
        let variables = variables();
        let config = Config { weight_decay: 0.1, ..Config::default() };
        let mut optimizer = OptimizerConfig::Lion(config).build(variables.clone()).unwrap();
        let mut expected: Vec<(f64, f64)> =
            values(&variables).into_iter().map(|theta| (theta, 0.)).collect();
        for lr in [0.1, 0.7, 0.2] {
            optimizer.step(&gradients(&variables), lr).unwrap();
            for (index, (theta, m)) in expected.iter_mut().enumerate() {
                let (curvature, weight_decay) = if index < 6 { (0.7, 0.1) } else { (-1.3, 0.) };
                let g = curvature * *theta + 1.;
                let c = 0.9 * *m + 0.1 * g;
                *theta -= lr * (c.signum() + weight_decay * *theta);
                *m = 0.99 * *m + 0.01 * g;
            }
            for (actual, (theta, _)) in values(&variables).into_iter().zip(&expected) {
                assert!((actual - theta).abs() < TOLERANCE, "{actual} is not {theta}");
            }
        }
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        let message = |config: Config| config.validate().unwrap_err().to_string();
        let beta2 = Config { beta2: -0.5, ..Config::default() };
        assert!(message(beta2).starts_with("`optimizer.beta2` = -0.5 must"));
        let lr = Config { lr: f64::INFINITY, ..Config::default() };
        assert!(message(lr).starts_with("`optimizer.lr` = inf must"));
    }
}
