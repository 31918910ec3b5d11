//! Softened probabilities (Hinton et al. 2015, <https://arxiv.org/abs/1503.02531>, §2).
//!
//! ```text
//! T² · mean over rows of Σ_c q_c (ln q_c − ln p_c)        p, q = softmax(logits / T) of the model and of the teacher
//! ```
//!
//! T² keeps the size of the gradient, which 1/T² would scale.

use candle_core::Tensor;
use tealight_ops::cross_entropy::cross_entropy_soft;
use tealight_ops::softmax::log_softmax;

use super::{Compared, ImitationLoss};
use crate::checks::check;
use crate::error::Result;
use crate::settings::settings;
use crate::task::Imitated;

settings! {
    /// `[teacher.loss] kind = "logits"`
    pub struct Config {
        /// T: logits are divided by it, so that unlikely classes count.
        pub temperature: f64 = 2.,
    }
}

impl ImitationLoss for Config {
    fn validate(&self, _weight: f64) -> Result<()> {
        let is_valid = |t: f64| t.is_finite() && t > 0.;
        check("teacher.loss.temperature", self.temperature, is_valid, "must be positive")
    }

    fn imitated(&self) -> Option<Imitated> {
        Some(Imitated::Logits)
    }

    fn loss(&self, compared: &dyn Compared) -> Result<Tensor> {
        let [outputs, of_teacher] = compared.outputs()?;
        let softened = |logits: &Tensor| logits.affine(1. / self.temperature, 0.);
        let log_q = log_softmax(&softened(&of_teacher.detach())?)?;
        let q = log_q.exp()?;
        let sum = (cross_entropy_soft(&softened(&outputs)?, &q)? + (&q * &log_q)?.sum_all()?)?;
        Ok(sum.affine(self.temperature.powi(2) / outputs.dim(0)? as f64, 0.)?)
    }
}
