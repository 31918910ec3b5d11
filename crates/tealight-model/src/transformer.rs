//! The backbone of every model: embedding, positions, stack.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use crate::block::{BlockInput, CrossAttention};
use crate::embedding::{Embedding, Input, InputSpec};
use crate::position::{Position, ScoreBias};
use crate::stack::Stack;
use crate::{BuildError, BuildResult, Mode, ModelConfig};

/// From inputs to hidden states.
#[derive(Debug)]
pub struct Transformer {
    embedding: Embedding,
    position: Position,
    stack: Stack,
    max_seq_len: usize,
}

impl Transformer {
    /// Builds `embedding`, `position` and `layer.*` for sequences of up to `max_seq_len`.
    pub fn build(
        config: &ModelConfig,
        input: InputSpec,
        max_seq_len: usize,
        cross: CrossAttention,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        config.validate()?;
        if config.tied_output && matches!(input, InputSpec::Features { .. }) {
            let message = "`model.tied_output` = true, but the inputs are features, not tokens";
            return Err(BuildError::config(["model.tied_output"], message));
        }
        let embedding = Embedding::build(config, input, &vb.pp("embedding"))?;
        let spec = config.position_spec(max_seq_len);
        let position = config.position.build(&spec, &vb.pp("position"))?;
        let stack = Stack::build(config, max_seq_len, &position.needs(), cross, vb)?;
        Ok(Self { embedding, position, stack, max_seq_len })
    }

    /// `(batch, seq_len)` ids or `(batch, seq_len, n_features)` → `(batch, seq_len, d_model)`
    pub fn forward(&self, input: &Input<'_>, context: &BlockInput<'_>) -> Result<Tensor> {
        self.encode(&self.embedding.embed(input)?, context)
    }

    /// The same from embeddings without positions, `(batch, seq_len, d_model)`.
    pub fn encode(&self, x: &Tensor, context: &BlockInput<'_>) -> Result<Tensor> {
        self.stack.forward(&self.start(x, context.mode)?, self.score_bias(), context)
    }

    /// What each layer read, from embeddings without positions: `n_layers` ×
    /// `(batch, n_maps, seq_len, seq_len)`.
    pub fn attention_weights(&self, x: &Tensor, context: &BlockInput<'_>) -> Result<Vec<Tensor>> {
        self.stack.attention_weights(&self.start(x, context.mode)?, self.score_bias(), context)
    }

    /// The embedding, for models that add to it or tie their output to it.
    pub fn embedding(&self) -> &Embedding {
        &self.embedding
    }

    /// Operations of the attention cores on one sequence, beyond the linear maps.
    pub fn attention_flops(&self, seq_len: usize, memory_len: usize) -> u64 {
        self.stack.attention_flops(seq_len, memory_len)
    }

    fn start(&self, x: &Tensor, mode: Mode) -> Result<Tensor> {
        let (_batch, seq_len, _d_model) = x.dims3()?;
        if seq_len == 0 {
            candle_core::bail!("a sequence of 0 positions: there is nothing to read");
        }
        if seq_len > self.max_seq_len {
            candle_core::bail!(
                "a sequence of {seq_len} positions is longer than `max_seq_len` = {}",
                self.max_seq_len
            );
        }
        self.embedding.finish(x, self.position.embedding.as_deref(), mode)
    }

    fn score_bias(&self) -> Option<&dyn ScoreBias> {
        self.position.score_bias.as_deref()
    }
}
