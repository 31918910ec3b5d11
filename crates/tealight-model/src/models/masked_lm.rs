//! Masked language models (Devlin et al. 2019, <https://arxiv.org/abs/1810.04805>): prediction of masked
//! tokens from the context on both sides.
//!
//! ```text
//! P(w_t | masked w) = softmax(LmHead(Transformer(masked w)_t))
//! ```

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::embedding::embedding;
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

/// The fraction of masked positions that cost estimates assume: BERT's (§3.1). A task that masks more
/// tokens costs more.
const MASKED_FRACTION: f64 = 0.15;

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
        Ok(Self { transformer, head })
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

    /// Logits `(n, vocab_size)` at `positions (n)`, which are indices into the batch·seq_len positions of
    /// `hidden (batch, seq_len, d_model)`. If `positions` is `None`, logits `(batch, seq_len,
    /// vocab_size)` at all positions.
    pub fn logits(&self, hidden: &Tensor, positions: Option<&Tensor>) -> Result<Tensor> {
        let Some(positions) = positions else { return self.head.forward(hidden) };
        let rows = hidden.flatten_to(1)?; // (batch·seq_len, d_model)
        self.head.forward(&embedding(&rows, positions)?)
    }

    /// The cross-entropy of `labels (n)` at `positions (n)`, which are as in [`Self::logits`].
    pub fn cross_entropy(
        &self,
        hidden: &Tensor,
        positions: &Tensor,
        labels: &Tensor,
    ) -> Result<Scored> {
        let read = embedding(&hidden.flatten_to(1)?, positions)?;
        self.head.cross_entropy(&read, labels)
    }

    /// The attention weights of each layer.
    pub fn attention_maps(&self, input: &Input<'_>, mask: &Mask) -> Result<Vec<BlockMaps>> {
        self.transformer.attention_maps(input, &BlockInput::new(mask, Mode::Eval))
    }

    /// The backbone.
    pub fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    /// The memory that the model of this `config` needs.
    pub fn estimate(config: &ModelConfig, spec: &MaskedLmSpec) -> Estimate {
        let head = config.lm_head.clone().unwrap_or_default();
        let (d_model, vocab_size) = (config.d_model as f64, spec.vocab_size as f64);
        // The masked positions' states; the outputs of the dense map, φ and the norm; the logits.
        let transform = if head.transform { 3. * d_model } else { 0. };
        let parameters = if head.transform { d_model * d_model } else { 0. };
        let activations = n_masked(spec) as f64 * (d_model + transform + vocab_size);
        Estimate::single_stack(config, spec.seq_len)
            + Estimate::outside_blocks(parameters, activations)
    }

    /// The cost of training on the longest sequences, with the parameters in `store`.
    pub fn cost(config: &ModelConfig, spec: &MaskedLmSpec, store: &ParamStore) -> Cost {
        let seq_len = spec.seq_len;
        let counts = PositionCounts { inputs: seq_len, residual: seq_len, output: n_masked(spec) };
        let stack = StackSpec::single(config, config.max_seq_len.unwrap_or(seq_len));
        Cost::single_stack(config, &stack, counts, &Self::estimate(config, spec), store)
    }
}

/// The number of positions of a sequence to which the head is applied.
fn n_masked(spec: &MaskedLmSpec) -> usize {
    (MASKED_FRACTION * spec.seq_len as f64).ceil() as usize
}
