//! The training loss of a classifier of texts, and how much each class counts in it.
//!
//! ```text
//! cross-entropy   [(1 − ε) Σ_i w_{y_i} l_{i, y_i} + ε / k Σ_i Σ_c w_c l_{i, c}] / Σ_i w_{y_i}       l = −ln softmax(x)
//! focal           1 / n Σ_i w_{y_i} (1 − p_{i, y_i})^γ l_{i, y_i}              Lin et al. 2017, eq. 5
//! labels          1 / (n k) Σ_i Σ_c −[w_c y ln σ(x) + (1 − y) ln(1 − σ(x))]
//! ```
//!
//! Sums and denominators are those of the whole step. The first is PyTorch's cross-entropy with weights, which also
//! weigh what label smoothing ε spreads; the last is its binary cross-entropy with `pos_weight`. Focal loss:
//! <https://arxiv.org/abs/1708.02002>.

use candle_core::{D, DType, Tensor};
use tealight_model::choice;
use tealight_model::names::Named as _;
use tealight_ops::softmax::log_softmax;

use crate::checks::check;
use crate::data::shown::on_one_line;
use crate::error::{Error, Result};
use crate::inference::labels::{Labels, Objective};
use crate::settings::settings;

const WEIGHTS: &str = "task.class_weights";
/// Keeps the derivative of (1 − p)^γ finite where γ < 1.
const TINY: f64 = 1e-12;

choice! {
    /// `[task.loss]`: the loss of classes in training. Evaluations have the cross-entropy without weights.
    pub enum LossConfig = "cross_entropy" {
        /// The cross-entropy.
        "cross_entropy" => CrossEntropy,
        /// Texts that are right with confidence count less (Lin et al. 2017).
        "focal" => Focal(FocalConfig),
    }
}

settings! {
    /// `[task.loss] kind = "focal"`
    pub struct FocalConfig {
        /// γ: how much less such texts count; 0 is the cross-entropy.
        pub gamma: f64 = 2.,
    }
}

choice! {
    /// How much each class counts in the loss; of several labels, how much the texts count that have the label.
    pub enum ClassWeights = "equal" {
        /// Every text counts as much.
        "equal" => Equal,
        /// Every class counts as much: a text of it counts n / (k · n_c), for n texts to train on, k classes, and n_c
        /// texts of the class (King and Zeng 2001). Of several labels (n − n_c) / n_c.
        "balanced" => Balanced,
        /// In between: in proportion to 1 / √n_c, with the mean 1 over classes. Of several labels √((n − n_c) / n_c).
        "sqrt" => Sqrt,
        /// In proportion to (1 − β) / (1 − β^n_c), with the mean 1 over classes (Cui et al. 2019). Not of several
        /// labels.
        "effective" => Effective(EffectiveConfig),
        /// As listed.
        "listed" => Listed(ListedConfig),
    }
}

settings! {
    /// `[task.class_weights] kind = "effective"`
    pub struct EffectiveConfig {
        /// β: texts count as if about 1 / (1 − β) different ones could be drawn of a class.
        pub beta: f64 = 0.999,
    }

    /// `[task.class_weights] kind = "listed"`
    pub struct ListedConfig {
        /// A number for each label, in the order of the outputs: that of `task.labels`, or ascending.
        pub weights: Vec<f64> = Vec::new(),
    }
}

impl LossConfig {
    /// Checks what does not depend on data.
    pub(super) fn validate(&self, objective: Objective, label_smoothing: f64) -> Result<()> {
        let Self::Focal(FocalConfig { gamma }) = *self else { return Ok(()) };
        let is_valid = |gamma: f64| gamma.is_finite() && gamma >= 0.;
        check("task.loss.gamma", gamma, is_valid, "must be finite and not negative")?;
        let (key, rule) = match objective {
            Objective::Classes if label_smoothing == 0. => return Ok(()),
            Objective::Classes => ("task.label_smoothing", "is defined without label smoothing"),
            _ => ("task.objective", "needs `task.objective` = \"classes\""),
        };
        let message = format!("`task.loss.kind` = \"focal\" {rule}");
        Err(Error::config(["task.loss.kind", key], message))
    }
}

impl ClassWeights {
    /// Checks what does not depend on data.
    pub(in crate::task) fn validate(&self, objective: Objective) -> Result<()> {
        match self {
            Self::Effective(EffectiveConfig { beta }) => {
                let is_valid = |beta: f64| (0. ..1.).contains(&beta);
                let rule = "must be at least 0 and less than 1";
                check("task.class_weights.beta", *beta, is_valid, rule)?;
            }
            Self::Listed(ListedConfig { weights }) => {
                let is_valid = |weight: f64| weight.is_finite() && weight > 0.;
                let key = "task.class_weights.weights";
                weights
                    .iter()
                    .try_for_each(|&one| check(key, one, is_valid, "must be positive"))?;
            }
            Self::Equal | Self::Balanced | Self::Sqrt => {}
        }
        let is_refused = match objective {
            Objective::Classes => false,
            Objective::Labels => matches!(self, Self::Effective(_)),
            Objective::Regression => *self != Self::Equal,
        };
        if is_refused {
            let message = format!(
                "`{WEIGHTS}` = \"{}\" needs classes, and `task.objective` = \"{}\" learns none",
                self.kind(),
                objective.name()
            );
            return Err(Error::config([WEIGHTS, "task.objective"], message));
        }
        Ok(())
    }

    /// The weight of each label, of which `trained` texts are trained on, `n` in all; `None` if all texts count as
    /// much. A label of which there is no text has the weight 1.
    ///
    /// # Errors
    /// If the list has another length.
    pub(in crate::task) fn by_label(
        &self,
        labels: &Labels,
        trained: &[u64],
        n: usize,
    ) -> Result<Option<Vec<f32>>> {
        let of_labels = labels.objective() == Objective::Labels;
        let n = n as f64;
        let odds = |n_c: f64| (n - n_c).max(1.) / n_c;
        let weights = match self {
            Self::Equal => return Ok(None),
            Self::Balanced if of_labels => each(trained, odds),
            Self::Sqrt if of_labels => each(trained, |n_c| odds(n_c).sqrt()),
            Self::Balanced => each(trained, |n_c| n / (trained.len() as f64 * n_c)),
            Self::Sqrt => with_mean_1(trained, |n_c| 1. / n_c.sqrt()),
            Self::Effective(EffectiveConfig { beta }) => {
                with_mean_1(trained, |n_c| (1. - beta) / (1. - beta.powf(n_c)))
            }
            Self::Listed(ListedConfig { weights }) if weights.len() == trained.len() => {
                weights.clone()
            }
            Self::Listed(ListedConfig { weights }) => {
                let message = format!(
                    "`{WEIGHTS}.weights` is a list of {}, and there are {} labels: {}",
                    weights.len(),
                    trained.len(),
                    on_one_line(&labels.names().join(", "))
                );
                return Err(Error::config([WEIGHTS], message));
            }
        };
        Ok(Some(weights.into_iter().map(|weight| weight as f32).collect()))
    }
}

fn each(trained: &[u64], weight: impl Fn(f64) -> f64) -> Vec<f64> {
    trained.iter().map(|&n_c| if n_c == 0 { 1. } else { weight(n_c as f64) }).collect()
}

/// With the mean 1 over the labels that there are texts of.
fn with_mean_1(trained: &[u64], weight: impl Fn(f64) -> f64) -> Vec<f64> {
    let occurring = trained.iter().filter(|&&n_c| n_c > 0).map(|&n_c| n_c as f64);
    let mean = occurring.clone().map(&weight).sum::<f64>() / occurring.count() as f64;
    each(trained, |n_c| weight(n_c) / mean)
}

/// Σ_i (1 − p_{i, y_i})^γ Σ_c targets_{i, c} (−ln p_{i, c}) of `logits (batch, n_classes)`. `others` is 1 for all
/// classes but y: 1 − p is the sum of their probabilities, which loses no digits where p is near 1.
pub(super) fn focal(
    logits: &Tensor,
    targets: &Tensor,
    others: &Tensor,
    gamma: f64,
) -> Result<Tensor> {
    let log_p = log_softmax(&at_least_f32(logits)?)?;
    let not_p = (log_p.exp()? * others.to_dtype(log_p.dtype())?)?.sum(D::Minus1)?;
    let nll = (&log_p * targets.to_dtype(log_p.dtype())?)?.sum(D::Minus1)?.neg()?;
    Ok(((not_p + TINY)?.powf(gamma)? * nll)?.sum_all()?)
}

pub(super) fn at_least_f32(x: &Tensor) -> Result<Tensor> {
    let is_half = matches!(x.dtype(), DType::F16 | DType::BF16);
    if is_half { Ok(x.to_dtype(DType::F32)?) } else { Ok(x.clone()) }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn weights_are_those_of_the_record() {
        let text = include_str!("../../../tests/golden/classification.json");
        let record = &serde_json::from_str::<Value>(text).unwrap()["class_weights"];
        let counts: Vec<u64> = serde_json::from_value(record["counts"].clone()).unwrap();
        let n = counts.iter().sum::<u64>() as usize;
        let names = ["a", "b", "c", "d"].map(str::to_owned).to_vec();
        let labels = Labels::new(Objective::Classes, names.clone());
        for (weights, key) in [
            (ClassWeights::Balanced, "balanced"),
            (ClassWeights::Sqrt, "inverse_square_root"),
            (ClassWeights::Effective(EffectiveConfig::default()), "effective_number_0_999"),
        ] {
            let found = weights.by_label(&labels, &counts, n).unwrap().unwrap();
            let expected: Vec<f64> = serde_json::from_value(record[key].clone()).unwrap();
            let are_near = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs() < 1e-6;
            assert!(found.iter().zip(&expected).all(are_near), "{key}: {found:?}");
        }
        // A label that no text has changes no other.
        let found = ClassWeights::Sqrt.by_label(&labels, &[4, 0, 4, 4], 12).unwrap().unwrap();
        assert_eq!(found, [1.; 4]);
        let of_labels = Labels::new(Objective::Labels, names);
        let found = ClassWeights::Balanced.by_label(&of_labels, &[20, 50, 0, 100], 100).unwrap();
        assert_eq!(found.unwrap(), [4., 1., 1., 0.01]);
        let listed = |weights| ClassWeights::Listed(ListedConfig { weights });
        let four = vec![1., 2., 3., 0.5];
        let found = listed(four).by_label(&labels, &counts, n).unwrap().unwrap();
        assert_eq!(found, [1., 2., 3., 0.5]);
        let error = listed(vec![1.]).by_label(&labels, &counts, n).unwrap_err().to_string();
        assert!(error.contains("is a list of 1, and there are 4 labels: a, b, c, d"), "{error}");
    }
}
