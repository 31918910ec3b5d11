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
use candle_nn::{VarBuilder, init};
use tealight_ops::linear_cross_entropy::Scored;

use super::output::OutputLayer;
pub use crate::config::LmHeadConfig;
use crate::config::ModelConfig;
use crate::error::BuildResult;
use crate::layers::feed_forward::Activation;
use crate::layers::linear::{Bias, Linear};
use crate::layers::norm::Norm;
use crate::params::init::Initializer;
use crate::transformer::embedding::Embedding;

/// Maps hidden states to logits over the vocabulary.
#[derive(Debug)]
pub struct LmHead {
    transform: Option<Transform>,
    output: OutputLayer,
}

impl LmHead {
    /// Builds `lm_head.dense`, `lm_head.norm` and `output`; a tied head has only the bias of `output`.
    pub fn build(
        config: &ModelConfig,
        vocab_size: usize,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let head = config.lm_head.clone().unwrap_or_default();
        let init = config.initializer()?;
        let transform = head
            .transform
            .then(|| Transform::build(config, head.activation, &init, &vb.pp("lm_head")));
        let vb = vb.pp("output");
        let output = if config.tied_output && head.bias {
            OutputLayer::Tied { bias: Some(vb.get_with_hints(vocab_size, "bias", init::ZERO)?) }
        } else {
            let bias = if head.bias { Bias::With } else { Bias::Without };
            OutputLayer::build(config, vocab_size, bias, &vb)?
        };
        Ok(Self { transform: transform.transpose()?, output })
    }

    /// `x (.., d_model)` → logits `(.., vocab_size)`; `embedding` holds the table of a tied output.
    pub fn forward(&self, x: &Tensor, embedding: &Embedding) -> Result<Tensor> {
        self.output.forward(&self.transformed(x)?, embedding)
    }

    /// The cross-entropy of `labels (n)` under the logits of [`Self::forward`] for `x (n, d_model)`.
    pub fn cross_entropy(
        &self,
        x: &Tensor,
        embedding: &Embedding,
        labels: &Tensor,
    ) -> Result<Scored> {
        self.output.cross_entropy(&self.transformed(x)?, embedding, labels, 0.)
    }

    fn transformed(&self, x: &Tensor) -> Result<Tensor> {
        self.transform.as_ref().map_or_else(|| Ok(x.clone()), |transform| transform.forward(x))
    }
}

/// Norm(φ(x W + c)).
#[derive(Debug)]
struct Transform {
    dense: Linear,
    activation: Activation,
    norm: Norm,
}

impl Transform {
    fn build(
        config: &ModelConfig,
        activation: Activation,
        init: &Initializer,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let d_model = config.d_model;
        let (bias, weight) = (config.linear_bias(), init.weight(d_model));
        let dense = Linear::build([d_model; 2], bias, weight, &vb.pp("dense"))?;
        Ok(Self { dense, activation, norm: config.norm.build(d_model, &vb.pp("norm"))? })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        self.norm.forward(&self.activation.forward(&self.dense.forward(x)?)?)
    }
}
