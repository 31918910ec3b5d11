//! The output layer of language models and forecasters: logits over the vocabulary, and their cross-entropy.
//!
//! ```text
//! untied    logits_t = W x_t (+ b)
//! tied      logits_t = x_t Eᵀ (+ b)           E is the token table                 Press & Wolf 2017
//! T5        logits_t = x_t Eᵀ / √d_model      under `model.scale_output`
//! ```
//!
//! Tied: <https://arxiv.org/abs/1608.05859>.

use candle_core::{D, Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::linear_cross_entropy::Scored;
use tealight_ops::reshape;

use crate::config::ModelConfig;
use crate::error::BuildResult;
use crate::layers::linear::{Bias, Linear};
use crate::transformer::embedding::Embedding;

/// A linear map to the vocabulary or the classes.
#[derive(Debug)]
pub(super) struct OutputLayer {
    map: Linear,
    /// The factor of the inputs: 1/√d_model under `model.scale_output`.
    scale: Option<f64>,
}

impl OutputLayer {
    /// A layer for `n_classes`, whose weights are the token table of `embedding` under `model.tied_output`.
    pub(super) fn build(
        config: &ModelConfig,
        n_classes: usize,
        bias: Bias,
        embedding: &Embedding,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        if !config.tied_output {
            return Self::untied(config, n_classes, bias, vb);
        }
        let map = Linear::with_weight(embedding.token_table()?.clone(), bias, vb)?;
        let scale = config.scale_output.then(|| 1. / (config.d_model as f64).sqrt());
        Ok(Self { map, scale })
    }

    /// A layer for `n_classes` with weights of its own.
    pub(super) fn untied(
        config: &ModelConfig,
        n_classes: usize,
        bias: Bias,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let weight = config.initializer()?.weight(config.d_model);
        let map = Linear::build([config.d_model, n_classes], bias, weight, vb)?;
        Ok(Self { map, scale: None })
    }

    /// `x (.., d_model)` → logits `(.., n_classes)`
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.map.forward(&self.scaled(x)?)
    }

    /// The cross-entropy of `labels (n)` under the logits of [`Self::forward`] for `x (.., d_model)` of n positions.
    pub(super) fn cross_entropy(
        &self,
        x: &Tensor,
        labels: &Tensor,
        label_smoothing: f64,
    ) -> Result<Scored> {
        let rows = reshape(x, ((), x.dim(D::Minus1)?))?; // (n, d_model)
        self.map.cross_entropy(&self.scaled(&rows)?, labels, label_smoothing)
    }

    fn scaled(&self, x: &Tensor) -> Result<Tensor> {
        self.scale.map_or_else(|| Ok(x.clone()), |scale| x * scale)
    }
}
