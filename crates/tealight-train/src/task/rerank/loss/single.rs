//! Losses of single scores.
//!
//! ```text
//! binary   mean −(w y ln σ(x) + (1 − y) ln(1 − σ(x)))       = (1 − y) x + (1 + (w − 1) y) ln(1 + e⁻ˣ)
//! mse      mean (x − y)²
//! ```

use candle_core::{Result as TensorResult, Tensor};
use tealight_ops::softplus::softplus;

use super::{Lists, Passages, RankingLoss, Summed, labels};
use crate::checks::check;
use crate::error::Result;
use crate::inference::text_classifier::Activation;
use crate::settings::settings;

settings! {
    /// `[task.loss] kind = "binary"`
    pub struct Binary {
        /// w: how much more a passage that answers counts.
        pub positive_weight: f64 = 1.,
    }

    /// `[task.loss] kind = "mse"`
    pub struct Mse {}
}

impl RankingLoss for Binary {
    fn validate(&self) -> Result<()> {
        let is_valid = |weight: f64| weight.is_finite() && weight > 0.;
        check("task.loss.positive_weight", self.positive_weight, is_valid, "must be positive")
    }

    fn passages(&self) -> Passages {
        Passages::One
    }

    fn activation(&self) -> Activation {
        Activation::Sigmoid
    }

    fn labels_in(&self) -> Option<(f64, f64)> {
        Some((0., 1.))
    }

    fn loss(&self, scores: &Tensor, lists: &Lists) -> TensorResult<Summed> {
        let labels = labels(scores, lists)?;
        let weights = labels.affine(self.positive_weight - 1., 1.)?;
        let of_zeros = (labels.affine(-1., 1.)? * scores)?;
        let sum = (of_zeros + (weights * softplus(&scores.neg()?)?)?)?.sum_all()?;
        Ok((sum, scores.elem_count() as f64))
    }
}

impl RankingLoss for Mse {
    fn passages(&self) -> Passages {
        Passages::One
    }

    fn loss(&self, scores: &Tensor, lists: &Lists) -> TensorResult<Summed> {
        let sum = (scores - labels(scores, lists)?)?.sqr()?.sum_all()?;
        Ok((sum, scores.elem_count() as f64))
    }
}
