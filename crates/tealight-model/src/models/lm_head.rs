//! The head of a masked language model (Devlin et al. 2019, §3.1 and A.2,
//! <https://arxiv.org/abs/1810.04805>, and its code).
//!
//! ```text
//! logits = Norm(φ(x W + c)) Eᵀ + b             E is the token table if tied, a separate matrix otherwise
//! ```
//!
//! Cost: the product with E takes O(d_model·vocab_size) per position, which dominates the time of a small
//! model. Apply the head only to positions whose tokens are predicted.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::activation::Function;
use tealight_ops::linear_cross_entropy::Scored;

use super::output::OutputLayer;
pub use crate::config::LmHeadConfig;
use crate::config::ModelConfig;
use crate::error::BuildResult;
use crate::layers::linear::{Bias, Linear};
use crate::layers::norm::BoxNorm;
use crate::transformer::embedding::Embedding;

/// Maps hidden states to logits over the vocabulary.
#[derive(Debug)]
pub(super) struct LmHead {
    transform: Option<Transform>,
    output: OutputLayer,
}

/// Norm(φ(x W + c)).
#[derive(Debug)]
struct Transform {
    dense: Linear,
    activation: Function,
    norm: BoxNorm,
}

impl LmHead {
    /// Builds `lm_head.dense`, `lm_head.norm` and `output`; a tied head has only the bias of `output`.
    pub(super) fn build(
        config: &ModelConfig,
        vocab_size: usize,
        embedding: &Embedding,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let head = config.lm_head.clone().unwrap_or_default();
        let transform = head.transform.then(|| {
            let (d_model, vb) = (config.d_model, vb.pp("lm_head"));
            let (bias, weight) = (config.linear_bias(), config.initializer()?.weight(d_model));
            BuildResult::Ok(Transform {
                dense: Linear::build([d_model; 2], bias, weight, &vb.pp("dense"))?,
                activation: head.activation.into(),
                norm: config.norm.build(d_model, &vb.pp("norm"))?,
            })
        });
        let transform = transform.transpose()?;
        let bias = if head.bias { Bias::With } else { Bias::Without };
        let output = OutputLayer::build(config, vocab_size, bias, embedding, &vb.pp("output"))?;
        Ok(Self { transform, output })
    }

    /// `x (.., d_model)` → logits `(.., vocab_size)`
    pub(super) fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.output.forward(&self.transformed(x)?)
    }

    /// The cross-entropy of `labels (n)` under the logits of [`Self::forward`] for `x (n, d_model)`.
    pub(super) fn cross_entropy(&self, x: &Tensor, labels: &Tensor) -> Result<Scored> {
        self.output.cross_entropy(&self.transformed(x)?, labels, 0.)
    }

    fn transformed(&self, x: &Tensor) -> Result<Tensor> {
        let Some(Transform { dense, activation, norm }) = &self.transform else {
            return Ok(x.clone());
        };
        norm.forward(&activation.forward(&dense.forward(x)?)?)
    }
}
