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
use crate::position::{Position, PositionSpec};
use block::{BlockDecoding, BlockInput, BlockMaps};
use embedding::{Embedding, Input, InputSpec};
use spec::StackSpec;
use stack::Stack;

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
        if config.tied_output && !matches!(input, InputSpec::Tokens { .. }) {
            let message = format!(
                "`model.tied_output` = true, but the inputs are {}, not tokens",
                input.name()
            );
            return Err(BuildError::config(["model.tied_output"], message));
        }
        let at = vb.pp("embedding");
        Self::build_on(Embedding::build(config, input, &at, &at)?, config, spec, vb)
    }

    /// As [`Self::build`], with an existing embedding. Builds `position` and `layer.*`.
    pub fn build_on(
        embedding: Embedding,
        config: &ModelConfig,
        spec: &StackSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let max_seq_len = spec.max_seq_len;
        let position_spec = PositionSpec {
            d_model: config.d_model,
            n_heads: config.n_heads,
            head_dim: config.head_dim(),
            max_seq_len,
            causal: spec.reads == Reads::Past,
            has_padding: embedding.pad_id().is_some(),
            grid: embedding.grid(),
        };
        let position = config.position.build(&position_spec, &vb.pp("position"))?;
        let layer = |i: usize| match spec.layers.get(i).and_then(|layer| layer.position.as_ref()) {
            Some(own) => Ok(own.build(&position_spec, &vb.pp("position"))?.needs()),
            None => Ok(position.needs()),
        };
        let needs = (0..spec.period()).map(layer).collect::<BuildResult<Vec<_>>>()?;
        let stack = Stack::build(config, spec, &needs, vb)?;
        Ok(Self { embedding, position, stack, max_seq_len })
    }

    /// `(batch, seq_len)` ids, `(batch, seq_len, n_features)` or `(batch, height, width, channels)` →
    /// `(batch, seq_len, d_model)`
    pub fn forward(&self, input: &Input<'_>, context: &BlockInput<'_>) -> Result<Tensor> {
        self.through_stack(input, context, Stack::forward)
    }

    /// [`Self::forward`] at some positions only; the shapes are those of
    /// [`Block::forward_at`](block::Block::forward_at), by which the last block computes them. It is faster, as the
    /// feed-forward network of that block is applied to these positions only.
    ///
    /// # Errors
    /// As [`Self::forward`], and on the CPU if a position is not one of the input's; on a GPU its state is NaN.
    pub fn forward_at(
        &self,
        input: &Input<'_>,
        context: &BlockInput<'_>,
        positions: &Tensor,
    ) -> Result<Tensor> {
        self.through_stack(input, context, |stack, x, context| {
            stack.forward_at(x, context, positions)
        })
    }

    /// The residual stream before the first block and after each block: `n_layers` + 1 tensors
    /// `(batch, seq_len, d_model)`. The last equals the output of [`Self::forward`].
    pub fn hidden_states(
        &self,
        input: &Input<'_>,
        context: &BlockInput<'_>,
    ) -> Result<Vec<Tensor>> {
        self.through_stack(input, context, Stack::hidden_states)
    }

    /// Queries, keys and values of the self-attention of `layer`, counted from 0, each `(batch, len, heads, head_dim)`:
    /// [`Attention::heads`](crate::attention::Attention::heads).
    ///
    /// # Errors
    /// As [`Self::forward`], and if there is no such layer.
    pub fn heads(
        &self,
        input: &Input<'_>,
        context: &BlockInput<'_>,
        layer: usize,
    ) -> Result<Option<[Tensor; 3]>> {
        self.through_stack(input, context, |stack, x, context| stack.heads(x, context, layer))
    }

    /// The number of blocks.
    pub fn n_layers(&self) -> usize {
        self.stack.n_layers()
    }

    /// The attention weights of each layer.
    pub fn attention_maps(
        &self,
        input: &Input<'_>,
        context: &BlockInput<'_>,
    ) -> Result<Vec<BlockMaps>> {
        self.through_stack(input, context, Stack::attention_maps)
    }

    /// Starts incremental decoding of a sequence, in evaluation mode. Only for a causal model do the steps
    /// agree with [`Self::forward`] on the whole sequence.
    pub fn decoding<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Decoding<'a>> {
        Ok(Decoding { transformer: self, blocks: self.stack.decoding(memory)?, len: 0 })
    }

    /// The embedding, for models that change its output or tie their output layer to it.
    pub fn embedding(&self) -> &Embedding {
        &self.embedding
    }

    /// The longest supported sequence.
    pub fn max_seq_len(&self) -> usize {
        self.max_seq_len
    }

    /// Embeds `input` and passes it to the stack by `run`, with the score bias as part of the mask.
    fn through_stack<T>(
        &self,
        input: &Input<'_>,
        context: &BlockInput<'_>,
        run: impl FnOnce(&Stack, &Tensor, &BlockInput<'_>) -> Result<T>,
    ) -> Result<T> {
        let x = self.embed(input, 0, context.mode)?;
        let Some(bias) = &self.position.score_bias else { return run(&self.stack, &x, context) };
        let (_batch, seq_len, _d_model) = x.dims3()?;
        let mask = context.mask.clone().with_attn_mask(&bias.bias(seq_len, seq_len)?)?;
        run(&self.stack, &x, &BlockInput { mask: &mask, ..*context })
    }

    /// The residual stream before the first block; `start` is the position of the first input.
    fn embed(&self, input: &Input<'_>, start: usize, mode: Mode) -> Result<Tensor> {
        let x = self.embedding.embed(input)?;
        let (_batch, seq_len, _d_model) = x.dims3()?;
        if seq_len == 0 {
            bail!("a sequence of 0 positions: at least one is needed");
        }
        let (len, max) = (start + seq_len, self.max_seq_len);
        if len > max {
            bail!("a sequence of {len} positions is longer than `max_seq_len` = {max}");
        }
        let position = self.position.embedding.as_deref();
        self.embedding.add_positions(x, input, position, start, mode)
    }
}

/// The state of incremental decoding: cached keys and values, or recurrent states, of each layer.
#[derive(Debug)]
pub struct Decoding<'a> {
    transformer: &'a Transformer,
    blocks: Vec<BlockDecoding<'a>>,
    len: usize,
}

impl Decoding<'_> {
    /// Reads the next inputs: `(batch, n_new)` ids → hidden states `(batch, n_new, d_model)`.
    pub fn step(&mut self, input: &Input<'_>) -> Result<Tensor> {
        let Self { transformer, blocks, len } = self;
        let x = transformer.embed(input, *len, Mode::Eval)?;
        let (_batch, n_new, _d_model) = x.dims3()?;
        *len += n_new;
        let score_bias = transformer.position.score_bias.as_ref();
        let score_bias = score_bias.map(|bias| bias.bias(n_new, *len)).transpose()?;
        let mut first = None;
        let mut step =
            |x, block: &mut BlockDecoding<'_>| block.step(&x, score_bias.as_ref(), &mut first);
        let x = blocks.iter_mut().try_fold(x, &mut step)?;
        transformer.stack.normalise(x)
    }

    /// Replaces the state of row i by that of row `rows[i]`, for beam search; `rows (new batch)` of u32.
    pub fn select(&mut self, rows: &Tensor) -> Result<()> {
        self.blocks.iter_mut().try_for_each(|block| block.select(rows))
    }

    /// Positions read so far.
    pub fn n_read(&self) -> usize {
        self.len
    }
}
