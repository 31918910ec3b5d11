//! `[teacher]`: a trained model whose outputs another one learns to give (Hinton et al. 2015,
//! <https://arxiv.org/abs/1503.02531>).
//!
//! ```text
//! L = w · L(outputs, those of the teacher) + (1 − w) · L(outputs, labels)
//! ```
//!
//! Outputs are `(n, k)`: a row for each item that carries a loss; a loss may compare heads of attention in their place. A loss
//! is a file here and a line in [`LossConfig`]. It is a mean over a micro-batch, which counts as much as the micro-batch
//! does in the loss by labels: with the sum of its class weights, say. The teacher is a constant: it has no dropout and no
//! gradient.

mod embeddings;
mod logits;
mod logits_mse;
mod relations;

use std::fmt;
use std::path::PathBuf;

use candle_core::{Result as TensorResult, Tensor};
use tealight_model::{Mask, choice};

pub(crate) use relations::LAYER;

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
    /// `[teacher.loss]`: how far outputs, or heads of attention, are from the teacher's.
    pub enum LossConfig: ImitationLoss = "logits" {
        /// Probabilities of classes, tags or tokens, softened by a temperature (Hinton et al. 2015).
        "logits" => Logits(logits::Config),
        /// The numbers before the softmax (Ba & Caruana 2014).
        "logits_mse" => LogitsMse(logits_mse::Config),
        /// Vectors of texts (Reimers & Gurevych 2020).
        "embeddings" => Embeddings(embeddings::Config),
        /// Which tokens attend to which (MiniLM; Wang et al. 2020, 2021).
        "relations" => Relations(relations::Config),
    }
}

/// A kind of loss.
pub(crate) trait ImitationLoss: fmt::Debug {
    /// Checks the settings. `weight` is the share of the teacher in the loss.
    fn validate(&self, _weight: f64) -> Result<()> {
        Ok(())
    }

    /// The outputs that it compares; `None` if it compares heads of attention.
    fn imitated(&self) -> Option<Imitated>;

    /// The mean over the rows, a scalar.
    fn loss(&self, compared: &dyn Compared) -> Result<Tensor>;
}

/// What a loss compares: of a model, and of its teacher on the same batch.
pub(crate) trait Compared {
    /// The outputs `(n, k)` of both.
    fn outputs(&self) -> Result<[Tensor; 2]>;

    /// Queries, keys and values of the last layer of the model and of `layer` of its teacher, its last one when absent: for
    /// each group of sequences that are read together.
    fn heads(&self, layer: Option<usize>) -> Result<Vec<Heads>>;
}

/// Heads of attention of a model and of its teacher on the same sequences.
#[derive(Clone, Debug)]
pub(crate) struct Heads {
    /// Queries, keys and values, each `(batch, len, heads, head_dim)`, of the model.
    pub(crate) own: [Tensor; 3],
    /// The same of its teacher.
    pub(crate) of_teacher: [Tensor; 3],
    /// Padding and documents.
    pub(crate) mask: Mask,
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
        loss.validate(self.weight)?;
        let (kind, wanted) = (self.loss.kind(), loss.imitated());
        let found = task.settings().imitated();
        if found.is_some() && (wanted.is_none() || found == wanted) {
            return Ok(());
        }
        let task = task.kind();
        let message = match (found, wanted) {
            (Some(found), Some(wanted)) => format!(
                "`teacher.loss.kind` = \"{kind}\" compares {wanted}, and models with `task.kind` = \"{task}\" have {found} \
                 with these settings"
            ),
            _ => format!(
                "models with `task.kind` = \"{task}\" have no outputs that a teacher is imitated in, with these settings"
            ),
        };
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
