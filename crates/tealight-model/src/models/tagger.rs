//! Tags of tokens, such as names of persons and places (Devlin et al. 2019, <https://arxiv.org/abs/1810.04805>, §5.3).
//!
//! ```text
//! P(tag of w_t | w) = softmax(W x_t + b),   x = Transformer(w)
//! ```
//!
//! `[model.classifier]` puts a dense map before W, as ModernBERT has it
//! ([`classifier_head`](crate::classifier_head)). The backbone's parameters have the same names as in a
//! [`MaskedLm`](super::masked_lm::MaskedLm), so that training can start from its checkpoint. `model.lm_head` and
//! `model.tied_output` have no effect here.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::cost::{Cost, Estimate, PositionCounts};
use crate::config::ModelConfig;
use crate::error::BuildResult;
use crate::layers::classifier_head::{Head, HeadSpec};
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::ParamStore;
use crate::transformer::Transformer;
use crate::transformer::block::{BlockInput, BlockMaps};
use crate::transformer::embedding::{Input, InputSpec};
use crate::transformer::spec::StackSpec;

/// Settings that data and task determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaggerSpec {
    /// Number of different tokens.
    pub vocab_size: usize,
    /// Number of different token types, or `0`.
    pub n_token_types: usize,
    /// The padding id, if there is one.
    pub pad_id: Option<u32>,
    /// The longest sequence.
    pub seq_len: usize,
    /// Number of tags.
    pub n_classes: usize,
}

/// A backbone, and a head that maps the state of each token to the tags.
#[derive(Debug)]
pub struct Tagger {
    transformer: Transformer,
    head: Head,
}

impl Tagger {
    /// Builds the backbone and `classifier`.
    ///
    /// # Errors
    /// If `config` is no such model, or if a parameter is missing or has another shape.
    pub fn build(
        config: &ModelConfig,
        spec: &TaggerSpec,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let TaggerSpec { vocab_size, n_token_types, pad_id, seq_len, n_classes } = *spec;
        config.refuse_second_stack()?;
        let max_seq_len = config.resolve_max_seq_len(seq_len)?;
        let input = InputSpec::Tokens { vocab_size, n_token_types, pad_id };
        let stack = StackSpec::single(config, max_seq_len);
        let transformer = Transformer::build(config, input, &stack, vb)?;
        let head = HeadSpec {
            d_model: config.d_model,
            n_classes,
            bias: config.linear_bias(),
            dropout: config.dropout,
            norm: &config.norm,
            init: &config.initializer()?,
        };
        let classifier = config.classifier.clone().unwrap_or_default();
        let head = classifier.build(&head, &vb.pp("classifier"))?;
        Ok(Self { transformer, head })
    }

    /// `(batch, seq_len)` ids → logits `(batch, seq_len, n_classes)`
    pub fn forward(&self, input: &Input<'_>, mask: &Mask, mode: Mode) -> Result<Tensor> {
        let hidden = self.transformer.forward(input, &BlockInput::new(mask, mode))?;
        self.head.forward(&hidden, mode)
    }

    /// The logits at some positions only: `positions (n)` in `batch · seq_len` → `(n, n_classes)`. See
    /// [`Transformer::forward_at`].
    ///
    /// # Errors
    /// As [`Transformer::forward_at`].
    pub fn forward_at(
        &self,
        input: &Input<'_>,
        mask: &Mask,
        positions: &Tensor,
        mode: Mode,
    ) -> Result<Tensor> {
        let context = BlockInput::new(mask, mode);
        let hidden = self.transformer.forward_at(input, &context, positions)?; // (n, d_model)
        self.head.forward(&hidden, mode)
    }

    /// The embeddings, positions and blocks.
    pub fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    /// The attention weights of each layer.
    pub fn attention_maps(&self, input: &Input<'_>, mask: &Mask) -> Result<Vec<BlockMaps>> {
        self.transformer.attention_maps(input, &BlockInput::new(mask, Mode::Eval))
    }

    /// The memory that the model of this `config` needs.
    pub fn estimate(config: &ModelConfig, spec: &TaggerSpec) -> Estimate {
        Estimate::single_stack(config, spec.seq_len)
    }

    /// The cost of training on the longest sequences, with the parameters in `store`.
    pub fn cost(config: &ModelConfig, spec: &TaggerSpec, store: &ParamStore) -> Cost {
        let seq_len = spec.seq_len;
        // Without a tied output, the token table is only looked up, not multiplied.
        let config = &ModelConfig { tied_output: false, ..config.clone() };
        let stack = StackSpec::single(config, config.max_seq_len.unwrap_or(seq_len));
        let counts = PositionCounts::everywhere(seq_len);
        Cost::single_stack(config, &stack, counts, &Self::estimate(config, spec), store)
    }
}
