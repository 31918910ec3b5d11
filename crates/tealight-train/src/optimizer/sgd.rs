//! Stochastic gradient descent with momentum (Sutskever et al. 2013,
//! <https://proceedings.mlr.press/v28/sutskever13.html>).
//!
//! ```text
//! b ← μ b + g    (b = g at the first update)
//! θ ← θ − lr (d + λ θ),    d = b, or g + μ b under Nesterov's variant
//! ```
//!
//! As in PyTorch, except that weight decay is decoupled as in `AdamW`.

use tealight_ops::sgd::{self, Hyper, Slot};

use super::kind::zeros;
use super::{OptimizerKind, Parameter, State, Update};
use crate::error::{Error, Result};
use crate::settings::settings;

settings! {
    /// `[optimizer] kind = "sgd"`
    ///
    /// By default the momentum is 0.9, as in most of the literature, without weight decay.
    pub struct Config {
        /// The peak of the learning rate; the schedule scales it.
        pub lr: f64 = 0.01,
        /// μ: decay of the momentum. 0 is plain gradient descent.
        pub momentum: f64 = 0.9,
        /// Nesterov momentum: the gradient is applied after the momentum's step.
        pub nesterov: bool = false,
        /// λ: weight decay, multiplied by the learning rate; matrices only.
        pub weight_decay: f64 = 0.,
    }
}

impl OptimizerKind for Config {
    fn validate(&self) -> Result<()> {
        super::check_positive("lr", self.lr)?;
        super::check_decay_rate("momentum", self.momentum)?;
        if self.nesterov && self.momentum == 0. {
            let keys = ["optimizer.nesterov", "optimizer.momentum"];
            let message = "`optimizer.nesterov` = true needs an `optimizer.momentum` above 0";
            return Err(Error::config(keys, message));
        }
        super::check_weight_decay("weight_decay", self.weight_decay)
    }

    fn peak_lr(&self) -> f64 {
        self.lr
    }

    fn state(&self, parameter: &Parameter) -> Result<State> {
        zeros(parameter, ["momentum_buffer"])
    }

    fn update(&self, updates: &[Update<'_>]) -> Result<()> {
        let Self { momentum, nesterov, .. } = *self;
        for update in updates {
            let Update { parameter, gradient, step, .. } = *update;
            let [momentum_buffer] = update.state();
            let weight_decay = parameter.decay(self.weight_decay);
            let hyper = Hyper { lr: step.lr, momentum, nesterov, weight_decay };
            let parameter = &parameter.variable;
            let slot = Slot { parameter, gradient, momentum_buffer, hyper };
            sgd::step(&slot, step.number)?;
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
    fn three_updates_follow_the_formula() {
        for nesterov in [false, true] {
            let variables = variables();
            let config = Config { nesterov, weight_decay: 0.1, ..Config::default() };
            let mut optimizer = OptimizerConfig::Sgd(config).build(variables.clone()).unwrap();
            let mut expected: Vec<(f64, f64)> =
                values(&variables).into_iter().map(|theta| (theta, 0.)).collect();
            for lr in [0.1, 0.05, 0.2] {
                optimizer.step(&gradients(&variables), lr).unwrap();
                for (index, (theta, buffer)) in expected.iter_mut().enumerate() {
                    let (curvature, weight_decay) = if index < 6 { (0.7, 0.1) } else { (-1.3, 0.) };
                    let gradient = curvature * *theta + 1.;
                    *buffer = 0.9 * *buffer + gradient;
                    let direction = if nesterov { gradient + 0.9 * *buffer } else { *buffer };
                    *theta -= lr * (direction + weight_decay * *theta);
                }
                for (actual, (theta, _)) in values(&variables).into_iter().zip(&expected) {
                    assert!((actual - theta).abs() < TOLERANCE, "{actual} is not {theta}");
                }
            }
        }
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        let message = |config: Config| config.validate().unwrap_err().to_string();
        let nesterov = Config { momentum: 0., nesterov: true, ..Config::default() };
        assert!(message(nesterov).starts_with("`optimizer.nesterov` = true needs"));
        let momentum = Config { momentum: 1., ..Config::default() };
        assert!(message(momentum).starts_with("`optimizer.momentum` = 1 must"));
    }
}
