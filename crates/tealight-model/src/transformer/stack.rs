//! A stack of blocks: an encoder, a decoder, or a decoder that reads an encoder.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::recompute::checkpoint;

use super::block::{Block, BlockDecoding, BlockInput, BlockMaps};
pub use super::spec::{Place, StackSpec};
use crate::attention::Memory;
use crate::config::{ModelConfig, NormPlacement};
use crate::error::BuildResult;
use crate::layers::norm::Norm;
use crate::mask::Mask;
use crate::mode::Activations;
use crate::position::{AttentionNeeds, ScoreBias};

/// `n_layers` blocks and, under pre-norm, a final norm.
#[derive(Debug)]
pub struct Stack {
    blocks: Vec<Arc<Block>>,
    final_norm: Option<Norm>,
}

impl Stack {
    /// Builds the blocks `layer.0`, `layer.1`, … and `final_norm`.
    pub fn build(
        config: &ModelConfig,
        spec: &StackSpec<'_>,
        needs: &AttentionNeeds,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let layer = |i| Block::build(config, spec, needs, &vb.pp("layer").pp(i)).map(Arc::new);
        let blocks = (0..spec.n_layers).map(layer).collect::<BuildResult<_>>()?;
        let final_norm = (config.norm_placement == NormPlacement::Pre)
            .then(|| config.norm.build(config.d_model, &vb.pp("final_norm")))
            .transpose()?;
        Ok(Self { blocks, final_norm })
    }

    /// `x (batch, seq_len, d_model)` → the same shape. `bias` is added to the scores of every
    /// self-attention.
    pub fn forward(
        &self,
        x: &Tensor,
        bias: Option<&dyn ScoreBias>,
        input: &BlockInput<'_>,
    ) -> Result<Tensor> {
        let x = self.fold(x, bias, input, |block, x, input| match input.mode.activations() {
            Activations::Kept => block.forward(x, input),
            Activations::Recomputed => recomputed(block, x, input),
        })?;
        self.normalise(x)
    }

    /// `x`, then the output of each block: n_layers + 1 tensors `(batch, seq_len, d_model)`. The last has
    /// passed the final norm and equals [`Self::forward`].
    pub fn hidden_states(
        &self,
        x: &Tensor,
        bias: Option<&dyn ScoreBias>,
        input: &BlockInput<'_>,
    ) -> Result<Vec<Tensor>> {
        let mut states = vec![x.clone()];
        self.fold(x, bias, input, |block, x, input| {
            let output = block.forward(x, input)?;
            states.push(output.clone());
            Ok(output)
        })?;
        if let Some(last) = states.pop_if(|_| !self.blocks.is_empty()) {
            states.push(self.normalise(last)?);
        }
        Ok(states)
    }

    /// The attention weights of each block.
    pub fn attention_maps(
        &self,
        x: &Tensor,
        bias: Option<&dyn ScoreBias>,
        input: &BlockInput<'_>,
    ) -> Result<Vec<BlockMaps>> {
        let mut maps = Vec::with_capacity(self.blocks.len());
        self.fold(x, bias, input, |block, x, input| {
            let (of_block, output) = block.forward_with_maps(x, input)?;
            maps.push(of_block);
            Ok(output)
        })?;
        Ok(maps)
    }

    /// The decoding state before the first position.
    pub fn decoding<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<StackDecoding<'a>> {
        let blocks =
            self.blocks.iter().map(|block| block.decoding(memory)).collect::<Result<_>>()?;
        Ok(StackDecoding { stack: self, blocks })
    }

    /// Passes `x` through all blocks, each by one call of `forward`; `bias` is part of the mask.
    fn fold(
        &self,
        x: &Tensor,
        bias: Option<&dyn ScoreBias>,
        input: &BlockInput<'_>,
        mut forward: impl FnMut(&Arc<Block>, &Tensor, &BlockInput<'_>) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let mask = biased(input.mask, bias, x)?;
        let input = BlockInput { mask: &mask, ..*input };
        self.blocks.iter().try_fold(x.clone(), |x, block| forward(block, &x, &input))
    }

    /// The final norm, if there is one.
    fn normalise(&self, x: Tensor) -> Result<Tensor> {
        match &self.final_norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        }
    }
}

/// The decoding state of a stack.
#[derive(Debug)]
pub struct StackDecoding<'a> {
    stack: &'a Stack,
    blocks: Vec<BlockDecoding<'a>>,
}

impl StackDecoding<'_> {
    /// Decodes the next positions: `x (batch, n_new, d_model)` → the same shape. `score_bias (n_heads, n_new,
    /// positions so far)` is added to the scores of every self-attention.
    pub fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        let mut x = x.clone();
        for block in &mut self.blocks {
            x = block.step(&x, score_bias)?;
        }
        self.stack.normalise(x)
    }

    /// Reorders the batch: row i continues from row `rows[i]`.
    pub fn select(&mut self, rows: &Tensor) -> Result<()> {
        self.blocks.iter_mut().try_for_each(|block| block.select(rows))
    }
}

/// The output of `block`, whose activations are not kept but recomputed in the backward pass.
fn recomputed(block: &Arc<Block>, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
    let (block, x, mask, mode) = (block.clone(), x.clone(), input.mask.clone(), input.mode);
    let memory = input.memory.map(|Memory { states, mask }| (states.clone(), mask.clone()));
    checkpoint(move || {
        let memory = memory.as_ref().map(|(states, mask)| Memory { states, mask });
        block.forward(&x, &BlockInput { mask: &mask, memory, mode })
    })
}

/// `mask` with the score bias of the sequence `x` added to its additive mask.
fn biased(mask: &Mask, bias: Option<&dyn ScoreBias>, x: &Tensor) -> Result<Mask> {
    let Some(bias) = bias else { return Ok(mask.clone()) };
    let (_batch, seq_len, _d_model) = x.dims3()?;
    mask.clone().with_attn_mask(&bias.bias(seq_len, seq_len)?)
}
