//! A stack of blocks: an encoder, a decoder, or a decoder that reads an encoder.

use std::sync::Arc;

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;
use tealight_ops::recompute::checkpoint;

use super::block::{Block, BlockDecoding, BlockInput, BlockMaps, pass_on, select};
pub use super::spec::{Place, StackSpec};
use crate::attention::Memory;
use crate::config::{ModelConfig, NormPlacement};
use crate::error::BuildResult;
use crate::layers::norm::BoxNorm;
use crate::mode::Activations;
use crate::position::AttentionNeeds;

/// `n_layers` blocks and, unless they end with norms, a final norm.
#[derive(Debug)]
pub struct Stack {
    blocks: Vec<Arc<Block>>,
    final_norm: Option<BoxNorm>,
}

impl Stack {
    /// Builds the blocks `layer.0`, `layer.1`, … and `final_norm`. `needs` is what the positions require of the
    /// layers, for each entry of `spec.layers` (one in all if there are none).
    pub fn build(
        config: &ModelConfig,
        spec: &StackSpec<'_>,
        needs: &[AttentionNeeds],
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let layer = |i| {
            let needs = &needs[i % spec.period()];
            Block::build(config, spec, i, needs, &vb.pp("layer").pp(i)).map(Arc::new)
        };
        let blocks = (0..spec.n_layers).map(layer).collect::<BuildResult<_>>()?;
        let final_norm = (config.norm_placement != NormPlacement::Post)
            .then(|| config.norm.build(config.d_model, &vb.pp("final_norm")))
            .transpose()?;
        Ok(Self { blocks, final_norm })
    }

    /// `x (batch, seq_len, d_model)` → the same shape.
    pub fn forward(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
        self.normalise(through(&self.blocks, x, input, &mut None)?)
    }

    /// [`Self::forward`] at some positions only, which the last block computes by [`Block::forward_at`].
    ///
    /// # Errors
    /// As [`Block::forward_at`].
    pub fn forward_at(
        &self,
        x: &Tensor,
        input: &BlockInput<'_>,
        positions: &Tensor,
    ) -> Result<Tensor> {
        let Some((last, blocks)) = self.blocks.split_last() else {
            return self.normalise(select(x, positions)?);
        };
        let mut first = None;
        let x = through(blocks, x, input, &mut first)?;
        let input = BlockInput { first: first.as_ref(), ..*input };
        let x = match input.mode.activations() {
            Activations::Kept => last.forward_at(&x, &input, positions)?,
            Activations::Recomputed => recomputed(last, &x, &input, Some(positions))?,
        };
        self.normalise(x)
    }

    /// `x`, then the output of each block: n_layers + 1 tensors `(batch, seq_len, d_model)`. The last has
    /// passed the final norm and equals [`Self::forward`].
    pub fn hidden_states(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Vec<Tensor>> {
        let (mut x, mut first) = (x.clone(), None);
        let mut states = Vec::with_capacity(self.blocks.len() + 1);
        for block in &self.blocks {
            pass_on(&mut first, || block.passed_on(&x, input))?;
            let output = block.forward(&x, &BlockInput { first: first.as_ref(), ..*input })?;
            states.push(std::mem::replace(&mut x, output));
        }
        states.push(if self.blocks.is_empty() { x } else { self.normalise(x)? });
        Ok(states)
    }

    /// Queries, keys and values of the self-attention of block `layer` ([`Attention::heads`]): later blocks do not run.
    ///
    /// [`Attention::heads`]: crate::attention::Attention::heads
    ///
    /// # Errors
    /// If there is no such block.
    pub fn heads(
        &self,
        x: &Tensor,
        input: &BlockInput<'_>,
        layer: usize,
    ) -> Result<Option<[Tensor; 3]>> {
        let Some(block) = self.blocks.get(layer) else {
            bail!("there is no block {layer} among {}", self.blocks.len());
        };
        let mut first = None;
        let x = through(&self.blocks[..layer], x, input, &mut first)?;
        pass_on(&mut first, || block.passed_on(&x, input))?;
        block.heads(&x, &BlockInput { first: first.as_ref(), ..*input })
    }

    /// How many blocks there are.
    pub fn n_layers(&self) -> usize {
        self.blocks.len()
    }

    /// The attention weights of each block.
    pub fn attention_maps(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Vec<BlockMaps>> {
        let (mut x, mut first) = (x.clone(), None);
        let mut maps = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            pass_on(&mut first, || block.passed_on(&x, input))?;
            let input = BlockInput { first: first.as_ref(), ..*input };
            let (of_block, output) = block.forward_with_maps(&x, &input)?;
            maps.push(of_block);
            x = output;
        }
        Ok(maps)
    }

    /// The decoding states of all blocks before the first position.
    pub(super) fn decoding<'a>(
        &'a self,
        memory: Option<Memory<'a>>,
    ) -> Result<Vec<BlockDecoding<'a>>> {
        self.blocks.iter().map(|block| block.decoding(memory)).collect()
    }

    /// The final norm, if there is one.
    pub(super) fn normalise(&self, x: Tensor) -> Result<Tensor> {
        match &self.final_norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        }
    }
}

/// `x` after `blocks`, and in `first` what they passed on.
fn through(
    blocks: &[Arc<Block>],
    x: &Tensor,
    input: &BlockInput<'_>,
    first: &mut Option<Tensor>,
) -> Result<Tensor> {
    blocks.iter().try_fold(x.clone(), |x, block| {
        pass_on(first, || block.passed_on(&x, input))?;
        let input = BlockInput { first: first.as_ref(), ..*input };
        match input.mode.activations() {
            Activations::Kept => block.forward(&x, &input),
            Activations::Recomputed => recomputed(block, &x, &input, None),
        }
    })
}

/// The output of `block`, at all positions or at `positions` alone. Its activations are not kept but recomputed in the
/// backward pass.
fn recomputed(
    block: &Arc<Block>,
    x: &Tensor,
    input: &BlockInput<'_>,
    positions: Option<&Tensor>,
) -> Result<Tensor> {
    let (block, x, mask, mode) = (block.clone(), x.clone(), input.mask.clone(), input.mode);
    let (positions, first) = (positions.cloned(), input.first.cloned());
    let memory = input.memory.map(|Memory { states, mask }| (states.clone(), mask.clone()));
    checkpoint(move || {
        let memory = memory.as_ref().map(|(states, mask)| Memory { states, mask });
        let first = first.as_ref();
        let input = BlockInput { memory, first, ..BlockInput::new(&mask, mode) };
        match &positions {
            Some(positions) => block.forward_at(&x, &input, positions),
            None => block.forward(&x, &input),
        }
    })
}
