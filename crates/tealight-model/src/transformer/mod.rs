//! The backbone of every model: embedding, positions, stack.

pub mod block;
pub mod embedding;
pub mod leaks;
pub mod spec;
pub mod stack;

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;

use crate::attention::{Memory, Reads};
use crate::config::ModelConfig;
use crate::error::{BuildError, BuildResult};
use crate::mode::Mode;
use crate::position::{Position, PositionSpec, ScoreBias, TokenPositions};
use block::{BlockInput, BlockMaps};
use embedding::{Embedding, Input, InputSpec};
use spec::StackSpec;
use stack::{Stack, StackDecoding};

/// Embedding, positions and a stack of blocks: maps inputs to hidden states.
#[derive(Debug)]
pub struct Transformer {
    embedding: Embedding,
    position: Position,
    stack: Stack,
    max_seq_len: usize,
}

impl Transformer {
    /// Builds `embedding`, `position` and `layer.*` for sequences of up to `spec.max_seq_len`.
    pub fn build(
        config: &ModelConfig,
        input: InputSpec,
        spec: &StackSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        config.validate()?;
        if config.tied_output && matches!(input, InputSpec::Features { .. }) {
            let message = "`model.tied_output` = true, but the inputs are features, not tokens";
            return Err(BuildError::config(["model.tied_output"], message));
        }
        let embedding = Embedding::build(config, input, &vb.pp("embedding"))?;
        Self::build_on(embedding, config, spec, vb)
    }

    /// As [`Self::build`], with an existing embedding. Builds `position` and `layer.*`.
    pub fn build_on(
        embedding: Embedding,
        config: &ModelConfig,
        spec: &StackSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let StackSpec { max_seq_len, reads, .. } = *spec;
        let ModelConfig { d_model, n_heads, .. } = *config;
        let causal = reads == Reads::Past;
        let has_padding = embedding.has_padding();
        let position_spec = PositionSpec {
            d_model,
            n_heads,
            head_dim: config.head_dim(),
            max_seq_len,
            causal,
            has_padding,
        };
        let position = config.position.build(&position_spec, &vb.pp("position"))?;
        let stack = Stack::build(config, spec, &position.needs(), vb)?;
        Ok(Self { embedding, position, stack, max_seq_len })
    }

    /// `(batch, seq_len)` ids or `(batch, seq_len, n_features)` → `(batch, seq_len, d_model)`
    pub fn forward(&self, input: &Input<'_>, context: &BlockInput<'_>) -> Result<Tensor> {
        self.stack.forward(&self.embed(input, 0, context.mode)?, self.score_bias(), context)
    }

    /// As [`Self::forward`], from embeddings without positions `(batch, seq_len, d_model)`, for models
    /// that change the embeddings. Positions then cannot depend on the tokens.
    pub fn forward_embeddings(&self, x: &Tensor, context: &BlockInput<'_>) -> Result<Tensor> {
        let x = self.add_positions(x, &positions(x, 0)?, context.mode)?;
        self.stack.forward(&x, self.score_bias(), context)
    }

    /// The residual stream before the first block and after each block: `n_layers` + 1 tensors
    /// `(batch, seq_len, d_model)`. The last equals the output of [`Self::forward`].
    pub fn hidden_states(
        &self,
        input: &Input<'_>,
        context: &BlockInput<'_>,
    ) -> Result<Vec<Tensor>> {
        self.stack.hidden_states(&self.embed(input, 0, context.mode)?, self.score_bias(), context)
    }

    /// The attention weights of each layer.
    pub fn attention_maps(
        &self,
        input: &Input<'_>,
        context: &BlockInput<'_>,
    ) -> Result<Vec<BlockMaps>> {
        self.stack.attention_maps(&self.embed(input, 0, context.mode)?, self.score_bias(), context)
    }

    /// As [`Self::attention_maps`], from embeddings without positions.
    pub fn attention_maps_of_embeddings(
        &self,
        x: &Tensor,
        context: &BlockInput<'_>,
    ) -> Result<Vec<BlockMaps>> {
        let x = self.add_positions(x, &positions(x, 0)?, context.mode)?;
        self.stack.attention_maps(&x, self.score_bias(), context)
    }

    /// Starts incremental decoding of a sequence, in evaluation mode. Only for a causal model do the steps
    /// agree with [`Self::forward`] on the whole sequence.
    pub fn decoding<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Decoding<'a>> {
        Ok(Decoding { transformer: self, stack: self.stack.decoding(memory)?, len: 0 })
    }

    /// The embedding, for models that change its output or tie their output layer to it.
    pub fn embedding(&self) -> &Embedding {
        &self.embedding
    }

    /// The longest supported sequence.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// The residual stream before the first block; `start` is the position of the first input.
    fn embed(&self, input: &Input<'_>, start: usize, mode: Mode) -> Result<Tensor> {
        let x = self.embedding.embed(input)?;
        let places =
            TokenPositions { padded: self.embedding.padded(input), ..positions(&x, start)? };
        self.add_positions(&x, &places, mode)
    }

    /// Checks the length of `x`, adds positions, normalises and applies dropout.
    fn add_positions(&self, x: &Tensor, places: &TokenPositions<'_>, mode: Mode) -> Result<Tensor> {
        if places.positions.is_empty() {
            bail!("a sequence of 0 positions: at least one is needed");
        }
        let len = places.positions.end;
        if len > self.max_seq_len {
            bail!(
                "a sequence of {len} positions is longer than `max_seq_len` = {}",
                self.max_seq_len
            );
        }
        self.embedding.add_positions(x, self.position.embedding.as_deref(), places, mode)
    }

    fn score_bias(&self) -> Option<&dyn ScoreBias> {
        self.position.score_bias.as_deref()
    }
}

/// The positions of embeddings `x (batch, seq_len, d_model)`, the first of which is at `start`.
fn positions(x: &Tensor, start: usize) -> Result<TokenPositions<'static>> {
    let (_batch, seq_len, _d_model) = x.dims3()?;
    Ok(TokenPositions { positions: start..start + seq_len, padded: None })
}

/// The state of incremental decoding: cached keys and values, or recurrent states, of each layer.
#[derive(Debug)]
pub struct Decoding<'a> {
    transformer: &'a Transformer,
    stack: StackDecoding<'a>,
    len: usize,
}

impl Decoding<'_> {
    /// Reads the next inputs: `(batch, n_new)` ids → hidden states `(batch, n_new, d_model)`.
    pub fn step(&mut self, input: &Input<'_>) -> Result<Tensor> {
        let Self { transformer, stack, len } = self;
        let x = transformer.embed(input, *len, Mode::Eval)?;
        let (_batch, n_new, _d_model) = x.dims3()?;
        *len += n_new;
        let score_bias = transformer.score_bias().map(|bias| bias.bias(n_new, *len)).transpose()?;
        stack.step(&x, score_bias.as_ref())
    }

    /// Replaces the state of row i by that of row `rows[i]`, for beam search; `rows (new batch)` of u32.
    pub fn select(&mut self, rows: &Tensor) -> Result<()> {
        self.stack.select(rows)
    }

    /// Positions read so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no position has been read.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}
