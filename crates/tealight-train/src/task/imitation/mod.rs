//! `[teacher]`: a trained model whose outputs another one learns to give (Hinton et al. 2015,
//! <https://arxiv.org/abs/1503.02531>).
//!
//! ```text
//! L = w · L(outputs, those of the teacher) + (1 − w) · L(outputs, labels)
//! ```
//!
//! Outputs are `(n, k)`: a row for each item that carries a loss. A loss of outputs is a file here and a line in
//! [`LossConfig`]; it is a mean over the rows of a micro-batch, which counts as much as the micro-batch does in the loss by
//! labels: with the sum of its class weights, say. The teacher is a constant: it has no dropout and no gradient.

mod embeddings;
mod logits;
mod logits_mse;

use std::fmt;
use std::path::PathBuf;

use candle_core::{Result as TensorResult, Tensor};
use tealight_model::choice;

use crate::checks::{check, given};
use crate::error::{Error, Result};
use crate::settings::settings;
use crate::task::{Imitated, TaskConfig};

/// The key of the teacher's path.
pub(crate) const MODEL: &str = "teacher.model";

settings! {
    /// `[teacher]`: the trained model that this one imitates.
    pub struct TeacherConfig {
        /// A run, a checkpoint, or an exported or Hugging Face folder.
        pub model: PathBuf = PathBuf::new(),
        /// The share of the teacher in the loss; the labels have the rest.
        pub weight: f64 = 0.7,
        /// How far outputs are from the teacher's.
        pub loss: LossConfig = LossConfig::default(),
    }
}

choice! {
    /// `[teacher.loss]`: how far outputs are from the teacher's.
    pub enum LossConfig: OutputLoss = "logits" {
        /// Probabilities of classes, tags or tokens, softened by a temperature (Hinton et al. 2015).
        "logits" => Logits(logits::Config),
        /// The numbers before the softmax (Ba & Caruana 2014).
        "logits_mse" => LogitsMse(logits_mse::Config),
        /// Vectors of texts (Reimers & Gurevych 2020).
        "embeddings" => Embeddings(embeddings::Config),
    }
}

/// A kind of loss.
pub(crate) trait OutputLoss: fmt::Debug {
    /// Checks the settings.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// The outputs that it compares.
    fn imitated(&self) -> Imitated;

    /// The mean over the rows: `(n, k)`, `(n, k)` → scalar.
    fn loss(&self, outputs: &Tensor, of_teacher: &Tensor) -> TensorResult<Tensor>;
}

impl TeacherConfig {
    /// Checks the settings, and that the models of `task` have such outputs.
    ///
    /// # Errors
    /// Names the setting.
    pub(crate) fn validate(&self, task: &TaskConfig) -> Result<()> {
        given(MODEL, &self.model, "a trained model whose outputs this one imitates")?;
        let is_share = |weight: f64| weight > 0. && weight <= 1.;
        check("teacher.weight", self.weight, is_share, "must be above 0 and at most 1")?;
        let loss = self.loss.settings();
        loss.validate()?;
        let (kind, wanted) = (self.loss.kind(), loss.imitated());
        let found = task.settings().imitated();
        if found == Some(wanted) {
            return Ok(());
        }
        let has = match found {
            None => "have no outputs that a teacher is imitated in".to_owned(),
            Some(found) => format!("have {found}"),
        };
        let message = format!(
            "`teacher.loss.kind` = \"{kind}\" compares {wanted}, and models with `task.kind` = \"{}\" {has} with these \
             settings",
            task.kind()
        );
        Err(Error::config(["teacher.loss.kind", "task.kind"], message))
    }

    /// The loss of a batch that is divided by `count`, which `sum` is by the labels alone: with the teacher's share.
    pub(crate) fn blend(
        &self,
        sum: &Tensor,
        imitation: &Tensor,
        count: f64,
    ) -> TensorResult<Tensor> {
        let imitation = (imitation * (self.weight * count))?;
        if self.weight == 1. { Ok(imitation) } else { (sum * (1. - self.weight))? + imitation }
    }
}

#[cfg(test)]
mod tests;
