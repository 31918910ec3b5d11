//! What a task has for a teacher (`[teacher]`): outputs and heads of attention that models can imitate.

use std::fmt;

use candle_core::Tensor;
use tealight_model::embedding::Input;
use tealight_model::transformer::Transformer;
use tealight_model::{Mask, Mode};

use super::Loss;
use crate::error::Result;

/// The outputs in which a model can imitate a teacher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Imitated {
    /// Numbers whose softmax are probabilities.
    Logits,
    /// Vectors of texts.
    Vectors,
}

impl fmt::Display for Imitated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Logits => "logits of classes or tokens",
            Self::Vectors => "vectors of texts",
        })
    }
}

/// The outputs of a model that are compared with those of a teacher on the same batch.
pub trait Imitation<Model, Batch> {
    /// `(n, k)` in f32: a row for each item that carries a loss; `None` if there are none. If the task has a joint loss,
    /// they are its vectors.
    fn outputs(&self, model: &Model, batch: &Batch, mode: Mode) -> Result<Option<Tensor>>;

    /// The loss of these outputs in training, by the labels of the batch.
    fn loss_by_labels(&self, outputs: &Tensor, batch: &Batch) -> Result<Loss>;

    /// The blocks of a model.
    fn transformer<'a>(&self, model: &'a Model) -> &'a Transformer;

    /// What the blocks read of a batch to compute [`Self::outputs`] in this `mode`.
    fn readings<'a>(&self, batch: &'a Batch, mode: Mode) -> Vec<Reading<'a>>;
}

/// What the blocks of a model read in one pass.
#[derive(Debug)]
pub struct Reading<'a> {
    /// The tokens or pictures.
    pub input: Input<'a>,
    /// Padding and documents.
    pub mask: Mask,
    /// With the random numbers of this pass.
    pub mode: Mode,
}
