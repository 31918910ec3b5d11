//! Text classification, with the head of BERT's fine-tuning (Devlin et al. 2019,
//! <https://arxiv.org/abs/1810.04805>, §4.1).
//!
//! ```text
//! P(class | w) = softmax(W C),   C = the state of the first token, or a mean of all states
//! ```
//!
//! `[model.classifier]` puts another dense map before W, as published models have
//! ([`classifier_head`](crate::classifier_head)): the state is read first, then the head maps it. The backbone's
//! parameters have the same names as in a [`MaskedLm`](super::masked_lm::MaskedLm), so that training can start from its
//! checkpoint. `model.lm_head` and `model.tied_output` have no effect here: new runs refuse them, and `init_from`
//! leaves them out. Regression and several labels at once have the same logits: one number, or one for each label.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::cost::{Cost, Estimate, PositionCounts};
use super::read_out::{ReadOut, ReadOutHead, refuse_causal_cls};
use crate::config::ModelConfig;
use crate::error::BuildResult;
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::ParamStore;
use crate::transformer::Transformer;
use crate::transformer::block::{BlockInput, BlockMaps};
use crate::transformer::embedding::{Input, InputSpec};
use crate::transformer::spec::StackSpec;

/// Settings that data and task determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClassifierSpec {
    /// Number of different tokens.
    pub vocab_size: usize,
    /// Number of different token types, or `0`.
    pub n_token_types: usize,
    /// The padding id, if there is one.
    pub pad_id: Option<u32>,
    /// The longest sequence.
    pub seq_len: usize,
    /// Number of classes.
    pub n_classes: usize,
    /// Which hidden state is classified.
    pub read_out: ReadOut,
}

/// A backbone, a read-out and a head that maps to the classes.
#[derive(Debug)]
pub struct Classifier {
    transformer: Transformer,
    head: ReadOutHead,
}

impl Classifier {
    /// Builds the backbone, `pooling` of the read-out `attention`, and `classifier`.
    pub fn build(
        config: &ModelConfig,
        spec: &ClassifierSpec,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let ClassifierSpec { vocab_size, n_token_types, pad_id, seq_len, n_classes, read_out } =
            *spec;
        refuse_causal_cls(config, read_out == ReadOut::Cls, "token")?;
        config.refuse_second_stack()?;
        let max_seq_len = config.resolve_max_seq_len(seq_len)?;
        let input = InputSpec::Tokens { vocab_size, n_token_types, pad_id };
        let stack = StackSpec::single(config, max_seq_len);
        let transformer = Transformer::build(config, input, &stack, vb)?;
        let head = ReadOutHead::build(config, n_classes, read_out, vb)?;
        Ok(Self { transformer, head })
    }

    /// `(batch, seq_len)` ids → logits `(batch, n_classes)`
    pub fn forward(&self, input: &Input<'_>, mask: &Mask, mode: Mode) -> Result<Tensor> {
        let context = BlockInput::new(mask, mode);
        let hidden = self.transformer.forward(input, &context)?; // (batch, seq_len, d_model)
        self.head.forward(&hidden, mask, mode)
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
    pub fn estimate(config: &ModelConfig, spec: &ClassifierSpec) -> Estimate {
        Estimate::single_stack(config, spec.seq_len)
    }

    /// The cost of training on the longest sequences, with the parameters in `store`.
    pub fn cost(config: &ModelConfig, spec: &ClassifierSpec, store: &ParamStore) -> Cost {
        let seq_len = spec.seq_len;
        let counts = PositionCounts { output: 1, ..PositionCounts::everywhere(seq_len) };
        // Without a tied output, the token table is only looked up, not multiplied.
        let config = &ModelConfig { tied_output: false, ..config.clone() };
        let stack = StackSpec::single(config, config.max_seq_len.unwrap_or(seq_len));
        Cost::single_stack(config, &stack, counts, &Self::estimate(config, spec), store)
    }
}
