//! Masked language models (Devlin et al. 2019, <https://arxiv.org/abs/1810.04805>): prediction of masked
//! tokens from the context on both sides.
//!
//! ```text
//! P(w_t | masked w) = softmax(LmHead(Transformer(masked w)_t))
//! ```

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::linear_cross_entropy::Scored;

use super::cost::{Cost, Estimate, PositionCounts};
use super::lm_head::LmHead;
use crate::config::ModelConfig;
use crate::error::{BuildError, BuildResult};
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::ParamStore;
use crate::transformer::Transformer;
use crate::transformer::block::{BlockInput, BlockMaps};
use crate::transformer::embedding::{Input, InputSpec};
use crate::transformer::spec::StackSpec;

/// Settings that data and task determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MaskedLmSpec {
    /// Number of different tokens.
    pub vocab_size: usize,
    /// Number of different token types, or `0`.
    pub n_token_types: usize,
    /// The padding id, if there is one.
    pub pad_id: Option<u32>,
    /// The longest sequence.
    pub seq_len: usize,
    /// Whether a sequence holds several documents, which `Mask::with_segments` separates.
    pub packed: bool,
}

/// A bidirectional backbone and a head over the vocabulary.
#[derive(Debug)]
pub struct MaskedLm {
    transformer: Transformer,
    head: LmHead,
    vocab_size: usize,
}

impl MaskedLm {
    /// Builds the backbone and the head.
    pub fn build(
        config: &ModelConfig,
        spec: &MaskedLmSpec,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        config.refuse_classifier_head()?;
        let transformer = Self::build_encoder(config, spec, vb)?;
        let head = LmHead::build(config, spec.vocab_size, transformer.embedding(), vb)?;
        Ok(Self { transformer, head, vocab_size: spec.vocab_size })
    }

    /// Builds the backbone alone, for uses that need no logits.
    pub fn build_encoder(
        config: &ModelConfig,
        spec: &MaskedLmSpec,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Transformer> {
        config.validate()?;
        config.refuse_second_stack()?;
        if config.causal {
            let message = "`model.causal` = true, but a masked language model predicts from the \
                           context on both sides";
            return Err(BuildError::config(["model.causal"], message));
        }
        let MaskedLmSpec { vocab_size, n_token_types, pad_id, seq_len, packed } = *spec;
        let max_seq_len = config.resolve_max_seq_len(seq_len)?;
        let input = InputSpec::Tokens { vocab_size, n_token_types, pad_id };
        let stack = StackSpec { packed, ..StackSpec::single(config, max_seq_len) };
        Transformer::build(config, input, &stack, vb)
    }

    /// `(batch, seq_len)` ids → `(batch, seq_len, d_model)`
    pub fn hidden(&self, input: &Input<'_>, mask: &Mask, mode: Mode) -> Result<Tensor> {
        self.transformer.forward(input, &BlockInput::new(mask, mode))
    }

    /// [`Self::hidden`] at some positions only: see [`Transformer::forward_at`].
    ///
    /// # Errors
    /// As [`Transformer::forward_at`].
    pub fn hidden_at(
        &self,
        input: &Input<'_>,
        mask: &Mask,
        positions: &Tensor,
        mode: Mode,
    ) -> Result<Tensor> {
        self.transformer.forward_at(input, &BlockInput::new(mask, mode), positions)
    }

    /// Number of different tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Hidden states `(.., d_model)` → logits `(.., vocab_size)`.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.head.forward(hidden)
    }

    /// The cross-entropy of `labels (n)` under hidden states `(n, d_model)`.
    pub fn cross_entropy(&self, hidden: &Tensor, labels: &Tensor) -> Result<Scored> {
        self.head.cross_entropy(hidden, labels)
    }

    /// The attention weights of each layer.
    pub fn attention_maps(&self, input: &Input<'_>, mask: &Mask) -> Result<Vec<BlockMaps>> {
        self.transformer.attention_maps(input, &BlockInput::new(mask, Mode::Eval))
    }

    /// The backbone.
    pub fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    /// The memory that the model of this `config` needs, if `masked_share` of the positions are masked.
    pub fn estimate(config: &ModelConfig, spec: &MaskedLmSpec, masked_share: f64) -> Estimate {
        let n_masked = n_masked(spec.seq_len, masked_share);
        let n_last = n_last_feed_forward(config, spec.seq_len, masked_share);
        let head = config.lm_head.clone().unwrap_or_default();
        let (d_model, vocab_size) = (config.d_model as f64, spec.vocab_size as f64);
        // The masked positions' states; the outputs of the dense map, φ and the norm; the logits.
        let transform = if head.transform { 3. * d_model } else { 0. };
        let parameters = if head.transform { d_model * d_model } else { 0. };
        let activations = n_masked as f64 * (d_model + transform + vocab_size);
        Estimate::read_at(config, spec.seq_len, n_last)
            + Estimate::outside_blocks(parameters, activations)
    }

    /// The cost of training on the longest sequences with the parameters in `store`, if `masked_share` of the positions
    /// are masked.
    pub fn cost(
        config: &ModelConfig,
        spec: &MaskedLmSpec,
        masked_share: f64,
        store: &ParamStore,
    ) -> Cost {
        let seq_len = spec.seq_len;
        let counts = PositionCounts {
            last_feed_forward: n_last_feed_forward(config, seq_len, masked_share),
            output: n_masked(seq_len, masked_share),
            ..PositionCounts::everywhere(seq_len)
        };
        let stack = StackSpec::single(config, config.max_seq_len.unwrap_or(seq_len));
        let estimate = Self::estimate(config, spec, masked_share);
        Cost::single_stack(config, &stack, counts, &estimate, store)
    }
}

/// The encoder alone.
impl MaskedLm {
    /// The memory that the encoder of this `config` needs, of whose states all are read, or the first alone.
    pub fn estimate_encoder(config: &ModelConfig, spec: &MaskedLmSpec, is_first: bool) -> Estimate {
        let n_last = n_last_states(config, spec.seq_len, is_first);
        Estimate::read_at(config, spec.seq_len, n_last)
    }

    /// The cost of training it on the longest sequences with the parameters in `store`.
    pub fn encoder_cost(
        config: &ModelConfig,
        spec: &MaskedLmSpec,
        is_first: bool,
        store: &ParamStore,
    ) -> Cost {
        // Without a tied output, the token table is only looked up, not multiplied.
        let config = &ModelConfig { tied_output: false, ..config.clone() };
        let seq_len = spec.seq_len;
        let counts = PositionCounts {
            last_feed_forward: n_last_states(config, seq_len, is_first),
            output: 0,
            ..PositionCounts::everywhere(seq_len)
        };
        let stack = StackSpec::single(config, config.max_seq_len.unwrap_or(seq_len));
        let estimate = Self::estimate_encoder(config, spec, is_first);
        Cost::single_stack(config, &stack, counts, &estimate, store)
    }
}

/// As [`n_last_feed_forward`], where all states are read, or the first alone.
fn n_last_states(config: &ModelConfig, seq_len: usize, is_first: bool) -> usize {
    if is_first && config.stochastic_depth == 0. { 1 } else { seq_len }
}

/// The number of positions of a sequence to which the last feed-forward network is applied in training; see
/// [`Block::forward_at`](crate::transformer::block::Block::forward_at).
fn n_last_feed_forward(config: &ModelConfig, seq_len: usize, masked_share: f64) -> usize {
    if config.stochastic_depth > 0. { seq_len } else { n_masked(seq_len, masked_share) }
}

/// The number of masked positions of a sequence: those to which the head is applied.
fn n_masked(seq_len: usize, masked_share: f64) -> usize {
    (masked_share * seq_len as f64).ceil() as usize
}
