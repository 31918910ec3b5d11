//! Causal language model (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"):
//! every position predicts the next token.
//!
//! ```text
//! P(x_{t+1} | x₁ … x_t) = softmax(W h_t),   h = Transformer(x)      position t reads j ≤ t
//! ```
//!
//! W is the table of token embeddings under `model.tied_output`, as in GPT-2, and a separate matrix
//! otherwise. The output has no bias, whatever the value of `model.bias`, as in published models.
//!
//! Cost: O(seq_len·d_model·vocab_size) time for the logits, and O(seq_len·vocab_size) memory.

use candle_core::{Device, IndexOp, Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::linear_cross_entropy::Scored;

use super::cost::{Cost, Estimate, PositionCounts};
use super::output::OutputLayer;
use crate::config::ModelConfig;
use crate::error::{BuildError, BuildResult};
use crate::generation::{self, Predictor};
use crate::layers::linear::Bias;
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::ParamStore;
use crate::transformer::block::{BlockInput, BlockMaps};
use crate::transformer::embedding::{Input, InputSpec};
use crate::transformer::spec::StackSpec;
use crate::transformer::{Decoding, Transformer};

/// Settings that data and task determine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CausalLmSpec {
    /// Number of different tokens.
    pub vocab_size: usize,
    /// The longest sequence.
    pub seq_len: usize,
    /// Whether a sequence holds several documents, which `Mask::with_segments` separates.
    pub packed: bool,
}

/// A causal backbone and a linear map to the vocabulary.
#[derive(Debug)]
pub struct CausalLm {
    vocab_size: usize,
    transformer: Transformer,
    output: OutputLayer,
}

impl CausalLm {
    /// Builds the backbone and, unless the output is tied, `output`.
    ///
    /// # Errors
    /// If `model.causal` is not set, because the targets would be part of the input, or if another setting
    /// is not supported.
    pub fn build(
        config: &ModelConfig,
        spec: &CausalLmSpec,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let CausalLmSpec { vocab_size, seq_len, packed } = *spec;
        if !config.causal {
            let message = "`model.causal` = false, but a causal language model needs true: \
                           otherwise a position attends to the token that it predicts";
            return Err(BuildError::config(["model.causal"], message));
        }
        config.refuse_second_stack()?;
        config.refuse_lm_head()?;
        config.refuse_classifier_head()?;
        let max_seq_len = config.resolve_max_seq_len(seq_len)?;
        let input = InputSpec::Tokens { vocab_size, n_token_types: 0, pad_id: None };
        let stack = StackSpec { packed, ..StackSpec::single(config, max_seq_len) };
        let transformer = Transformer::build(config, input, &stack, vb)?;
        let (bias, embedding) = (Bias::Without, transformer.embedding());
        let output = OutputLayer::build(config, vocab_size, bias, embedding, &vb.pp("output"))?;
        Ok(Self { vocab_size, transformer, output })
    }

    /// Token ids `(batch, seq_len)` → logits `(batch, seq_len, vocab_size)` of the next tokens.
    pub fn forward(&self, ids: &Tensor, mask: &Mask, mode: Mode) -> Result<Tensor> {
        self.logits(&self.hidden(ids, mask, mode)?)
    }

    /// Token ids `(batch, seq_len)` → hidden states `(batch, seq_len, d_model)`.
    pub fn hidden(&self, ids: &Tensor, mask: &Mask, mode: Mode) -> Result<Tensor> {
        self.transformer.forward(&Input::tokens(ids), &BlockInput::new(mask, mode))
    }

    /// Hidden states `(.., d_model)` → logits `(.., vocab_size)`.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor> {
        self.output.forward(hidden)
    }

    /// The cross-entropy of `labels (n)` under hidden states `(.., d_model)` of n positions.
    pub fn cross_entropy(
        &self,
        hidden: &Tensor,
        labels: &Tensor,
        label_smoothing: f64,
    ) -> Result<Scored> {
        self.output.cross_entropy(hidden, labels, label_smoothing)
    }

    /// Starts incremental decoding.
    pub fn decoding(&self) -> Result<Decoding<'_>> {
        self.transformer.decoding(None)
    }

    /// The backbone.
    pub fn transformer(&self) -> &Transformer {
        &self.transformer
    }

    /// Number of different tokens.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The attention weights of each layer.
    pub fn attention_maps(&self, ids: &Tensor, mask: &Mask) -> Result<Vec<BlockMaps>> {
        let context = BlockInput::new(mask, Mode::Eval);
        self.transformer.attention_maps(&Input::tokens(ids), &context)
    }

    /// The memory that the model of this `config` needs.
    pub fn estimate(config: &ModelConfig, spec: &CausalLmSpec) -> Estimate {
        let CausalLmSpec { vocab_size, seq_len, .. } = *spec;
        let logits = vocab_size as f64 * seq_len as f64;
        Estimate::single_stack(config, seq_len) + Estimate::outside_blocks(0., logits)
    }

    /// The cost of training on the longest sequences, with the parameters in `store`.
    pub fn cost(config: &ModelConfig, spec: &CausalLmSpec, store: &ParamStore) -> Cost {
        let len = spec.seq_len;
        let counts = PositionCounts::everywhere(len);
        let stack = StackSpec::single(config, len);
        Cost::single_stack(config, &stack, counts, &Self::estimate(config, spec), store)
    }
}

/// A [`Predictor`] for [`generate`](generation::generate): the model with its decoding state.
///
/// If a text becomes longer than `max_seq_len`, decoding starts again with the last `max_seq_len / 2`
/// tokens as a new sequence. Every token is then predicted from at least `max_seq_len / 2` others, and
/// only one in `max_seq_len / 2` steps reads more than one token.
#[derive(Debug)]
pub struct CachedPredictor<'a> {
    model: &'a CausalLm,
    decoding: Decoding<'a>,
    /// The tokens that each row has read; all rows are equally long.
    read: Vec<Vec<u32>>,
    never: &'a [u32],
    device: Device,
}

impl<'a> CachedPredictor<'a> {
    /// Starts before the first token. Tokens in `never`, such as padding, are not generated.
    pub fn new(model: &'a CausalLm, never: &'a [u32], device: &Device) -> Result<Self> {
        let (decoding, device) = (model.decoding()?, device.clone());
        Ok(Self { model, decoding, read: Vec::new(), never, device })
    }

    /// The tokens to read next: `new`, or the last `max_seq_len / 2` tokens if decoding starts again.
    fn tokens_to_read(&mut self, new: &[Vec<u32>]) -> Result<Tensor> {
        self.read.resize(new.len(), Vec::new());
        for (read, new) in self.read.iter_mut().zip(new) {
            read.extend(new);
        }
        let n_new = new.first().map_or(0, Vec::len);
        let max_seq_len = self.model.transformer.max_seq_len();
        if self.decoding.n_read() + n_new <= max_seq_len {
            return Tensor::new(new.to_vec(), &self.device);
        }
        self.decoding = self.model.decoding()?;
        let kept = (max_seq_len / 2).max(1);
        let last = |read: &Vec<u32>| read[read.len().saturating_sub(kept)..].to_vec();
        Tensor::new(self.read.iter().map(last).collect::<Vec<_>>(), &self.device)
    }
}

impl Predictor for CachedPredictor<'_> {
    fn next(&mut self, rows: &[Vec<u32>]) -> Result<Vec<Vec<f64>>> {
        let ids = self.tokens_to_read(rows)?; // (batch, n_new)
        let hidden = self.decoding.step(&Input::tokens(&ids))?; // (batch, n_new, d_model)
        let (_batch, n_new, _d_model) = hidden.dims3()?;
        generation::rows(&self.model.logits(&hidden.i((.., n_new - 1))?)?, self.never)
    }

    fn select(&mut self, rows: &[u32]) -> Result<()> {
        self.read = rows.iter().map(|&row| self.read[row as usize].clone()).collect();
        self.decoding.select(&Tensor::new(rows, &self.device)?)
    }
}
