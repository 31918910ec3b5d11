//! The output layer of language models and forecasters: logits over the vocabulary, and their cross-entropy.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::linear_cross_entropy::Scored;

use crate::config::ModelConfig;
use crate::error::BuildResult;
use crate::layers::linear::{Bias, Linear};
use crate::transformer::embedding::Embedding;

/// A linear map to the vocabulary, with the transposed token table under `model.tied_output`.
#[derive(Debug)]
pub(super) enum OutputLayer {
    Tied { bias: Option<Tensor> },
    Own(Linear),
}

impl OutputLayer {
    /// A layer for `n_classes`; a tied one has no parameters.
    pub(super) fn build(
        config: &ModelConfig,
        n_classes: usize,
        bias: Bias,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        if config.tied_output {
            return Ok(Self::Tied { bias: None });
        }
        let weight = config.initializer()?.weight(config.d_model);
        Ok(Self::Own(Linear::build([config.d_model, n_classes], bias, weight, vb)?))
    }

    /// `x (.., d_model)` → logits `(.., n_classes)`; `embedding` holds the table of a tied output.
    pub(super) fn forward(&self, x: &Tensor, embedding: &Embedding) -> Result<Tensor> {
        match self {
            Self::Tied { bias } => embedding.logits(x, bias.as_ref()),
            Self::Own(linear) => linear.forward(x),
        }
    }

    /// The cross-entropy of `labels (n)` under the logits of [`Self::forward`] for `x (n, d_model)`.
    pub(super) fn cross_entropy(
        &self,
        x: &Tensor,
        embedding: &Embedding,
        labels: &Tensor,
        label_smoothing: f64,
    ) -> Result<Scored> {
        match self {
            Self::Tied { bias } => {
                embedding.cross_entropy(x, bias.as_ref(), labels, label_smoothing)
            }
            Self::Own(linear) => linear.cross_entropy(x, labels, label_smoothing),
        }
    }
}
