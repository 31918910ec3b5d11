//! The head of a masked language model (Devlin et al. 2019, §3.1 and A.2,
//! <https://arxiv.org/abs/1810.04805>, and its code).
//!
//! ```text
//! logits = Norm(φ(x W + c)) Eᵀ + b             E, the table of tokens when tied; or a matrix of its own
//! ```
//!
//! Cost: the product with E, O(d_model·vocab_size) for each position that is read, is most of a small
//! model's time, so only positions whose tokens are asked for should come here.

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};
use tealight_ops::linear_cross_entropy::Scored;

pub use crate::config::LmHeadConfig;
use crate::config::ModelConfig;
use crate::error::BuildResult;
use crate::layers::feed_forward::Activation;
use crate::layers::linear::{Bias, Linear};
use crate::layers::norm::Norm;
use crate::params::init::Initializer;
use crate::transformer::embedding::Embedding;

/// From hidden states to logits over the vocabulary.
#[derive(Debug)]
pub struct LmHead {
    transform: Option<Transform>,
    output: Output,
}

#[derive(Debug)]
enum Output {
    Tied { bias: Option<Tensor> },
    Own(Linear),
}

impl LmHead {
    /// Builds `lm_head.dense`, `lm_head.norm` and `output`, of which a tied head has the bias alone.
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
        let output = if config.tied_output {
            let bias = || vb.get_with_hints(vocab_size, "bias", init::ZERO);
            Output::Tied { bias: head.bias.then(bias).transpose()? }
        } else {
            let bias = if head.bias { Bias::With } else { Bias::Without };
            let weight = init.weight(config.d_model);
            Output::Own(Linear::build([config.d_model, vocab_size], bias, weight, &vb)?)
        };
        Ok(Self { transform: transform.transpose()?, output })
    }

    /// `x (.., d_model)` → `(.., vocab_size)`; `embedding` has the table of a tied output.
    pub fn forward(&self, x: &Tensor, embedding: &Embedding) -> Result<Tensor> {
        let x = self.transformed(x)?;
        match &self.output {
            Output::Tied { bias } => embedding.logits_with(&x, bias.as_ref()),
            Output::Own(output) => output.forward(&x),
        }
    }

    /// What `labels (n)` cost where [`Self::forward`] gives the logits of `x (n, d_model)`.
    pub fn scored(&self, x: &Tensor, embedding: &Embedding, labels: &Tensor) -> Result<Scored> {
        let x = self.transformed(x)?;
        match &self.output {
            Output::Tied { bias } => embedding.scored(&x, bias.as_ref(), labels, 0.),
            Output::Own(output) => output.scored(&x, labels, 0.),
        }
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
    norm: Box<dyn Norm>,
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
