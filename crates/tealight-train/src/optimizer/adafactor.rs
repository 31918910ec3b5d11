//! Adafactor: Adam with a second moment of rank one and no first moment (Shazeer & Stern 2018,
//! <https://arxiv.org/abs/1804.04235>).
//!
//! ```text
//! R ← β R + (1 − β) (G² + ε₁) 1,   C ← β C + (1 − β) 1ᵀ (G² + ε₁)                  algorithm 4
//! V = R C / 1ᵀR          or, of a vector,  V ← β V + (1 − β) (G² + ε₁)             algorithm 5
//! U = G / √V,            Û = U / max(1, RMS(U) / d)
//! X ← X − α Û,           α = max(ε₂, RMS(X)) lr,           β = 1 − tᶜ
//! ```
//!
//! The paper's ρ = min(10⁻², 1/√t) is our lr, which the schedule gives: 0.01 and `inverse_sqrt` with
//! a warm-up of 10,000 updates give the same rate from there on. The paper has no weight decay; ours is
//! multiplied by α.

use tealight_ops::adafactor::{self, Hyper, SecondMoment, Slot};

use super::{OptimizerKind, Parameter, State, Update};
use crate::error::Result;
use crate::settings::settings;

settings! {
    /// `[optimizer] kind = "adafactor"`
    ///
    /// The defaults are the paper's (algorithm 6), without weight decay.
    pub struct Config {
        /// The peak of the learning rate; the schedule scales it.
        pub lr: f64 = 0.01,
        /// Multiply the learning rate by the size of the parameter (§8).
        pub relative_step: bool = true,
        /// c, negative: the second moment decays by 1 − tᶜ at update t (§7.2).
        pub decay: f64 = -0.8,
        /// ε₁: keeps the second moment positive.
        pub epsilon1: f64 = 1e-30,
        /// ε₂: lower bound of RMS(X) in α.
        pub epsilon2: f64 = 1e-3,
        /// d: updates whose RMS exceeds this are scaled down to it (§6).
        pub clip: f64 = 1.,
        /// λ, multiplied by α; matrices only.
        pub weight_decay: f64 = 0.,
    }
}

impl OptimizerKind for Config {
    fn validate(&self) -> Result<()> {
        super::check_positive("lr", self.lr)?;
        let is_valid = |decay: f64| decay.is_finite() && decay < 0.;
        super::check("decay", self.decay, is_valid, "must be finite and below 0")?;
        super::check_positive("epsilon1", self.epsilon1)?;
        super::check_positive("epsilon2", self.epsilon2)?;
        super::check_positive("clip", self.clip)?;
        super::check_weight_decay("weight_decay", self.weight_decay)
    }

    fn peak_lr(&self) -> f64 {
        self.lr
    }

    fn state(&self, parameter: &Parameter) -> Result<State> {
        Ok(match SecondMoment::zeros(&parameter.variable)? {
            SecondMoment::Factored { rows, columns } => {
                vec![("row_moment", rows), ("column_moment", columns)]
            }
            SecondMoment::Full(all) => vec![("second_moment", all)],
        })
    }

    fn update(&self, updates: &[Update<'_>]) -> Result<()> {
        let Self { relative_step, decay, epsilon1, epsilon2, clip, .. } = *self;
        for update in updates {
            let Update { parameter, gradient, state, step } = *update;
            let second_moment = if let [(_, rows), (_, columns)] = state {
                SecondMoment::Factored { rows: rows.clone(), columns: columns.clone() }
            } else {
                let [all] = update.state();
                SecondMoment::Full(all.clone())
            };
            let (lr, weight_decay) = (step.lr, parameter.decay(self.weight_decay));
            let hyper = Hyper { lr, decay, epsilon1, epsilon2, clip, relative_step, weight_decay };
            let (parameter, second_moment) = (&parameter.variable, &second_moment);
            let slot = Slot { parameter, gradient, second_moment, hyper };
            adafactor::step(&slot, step.number)?;
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

    fn rms(x: &[f64]) -> f64 {
        (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64).sqrt()
    }

    /// X − α (Û + λ X)
    fn moved(
        theta: &[f64],
        update: &[f64],
        lr: f64,
        relative: bool,
        weight_decay: f64,
    ) -> Vec<f64> {
        let alpha = if relative { lr * rms(theta).max(1e-3) } else { lr };
        let clipping = rms(update).max(1.);
        let pairs = theta.iter().zip(update);
        pairs.map(|(x, u)| x - alpha * (u / clipping + weight_decay * x)).collect()
    }

    #[test]
    fn three_updates_follow_the_paper() {
        for relative_step in [true, false] {
            let variables = variables();
            let config = Config { relative_step, weight_decay: 0.1, ..Config::default() };
            let mut optimizer =
                OptimizerConfig::Adafactor(config).build(variables.clone()).unwrap();
            let all = values(&variables);
            let (mut weight, mut bias) = (all[..6].to_vec(), all[6..].to_vec());
            let (mut r, mut c, mut v) = ([0.; 2], [0.; 3], [0.; 3]);
            for (t, lr) in [(1_i32, 0.1), (2, 0.05), (3, 0.2)] {
                optimizer.step(&gradients(&variables), lr).unwrap();
                let beta = 1. - f64::from(t).powf(-0.8);

                let g: Vec<f64> = weight.iter().map(|x| 0.7 * x + 1.).collect();
                for i in 0..2 {
                    let row: f64 = (0..3).map(|j| g[3 * i + j].powi(2) + 1e-30).sum();
                    r[i] = beta * r[i] + (1. - beta) * row;
                }
                for j in 0..3 {
                    let column: f64 = (0..2).map(|i| g[3 * i + j].powi(2) + 1e-30).sum();
                    c[j] = beta * c[j] + (1. - beta) * column;
                }
                let total: f64 = r.iter().sum();
                let update: Vec<f64> =
                    (0..6).map(|at| g[at] / (r[at / 3] * c[at % 3] / total).sqrt()).collect();
                weight = moved(&weight, &update, lr, relative_step, 0.1);

                let g: Vec<f64> = bias.iter().map(|x| -1.3 * x + 1.).collect();
                for (v, g) in v.iter_mut().zip(&g) {
                    *v = beta * *v + (1. - beta) * (g * g + 1e-30);
                }
                let update: Vec<f64> = g.iter().zip(v).map(|(g, v)| g / v.sqrt()).collect();
                bias = moved(&bias, &update, lr, relative_step, 0.);

                let expected = weight.iter().chain(&bias);
                for (actual, expected) in values(&variables).iter().zip(expected) {
                    assert!((actual - expected).abs() < TOLERANCE, "{actual} is not {expected}");
                }
            }
        }
    }

    #[test]
    fn of_a_matrix_its_rows_and_columns_are_kept() {
        let optimizer = OptimizerConfig::Adafactor(Config::default()).build(variables()).unwrap();
        let state = optimizer.state();
        assert_eq!(state["layer.0.weight.row_moment"].dims(), [2]);
        assert_eq!(state["layer.0.weight.column_moment"].dims(), [3]);
        assert_eq!(state["layer.0.bias.second_moment"].dims(), [3]);
        assert_eq!(state.len(), 4);
    }

    #[test]
    fn values_out_of_range_are_refused_by_key() {
        let message = |config: Config| config.validate().unwrap_err().to_string();
        let decay = Config { decay: 0.8, ..Config::default() };
        assert_eq!(message(decay), "`optimizer.decay` = 0.8 must be finite and below 0");
        let clip = Config { clip: 0., ..Config::default() };
        assert!(message(clip).starts_with("`optimizer.clip` = 0 must"));
    }
}
