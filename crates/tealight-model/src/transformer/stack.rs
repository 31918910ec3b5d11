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
    final_norm: Option<Box<dyn Norm>>,
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
        let mask = biased(input.mask, bias, x)?;
        let input = BlockInput { mask: &mask, ..*input };
        let mut x = x.clone();
        for block in &self.blocks {
            x = match input.mode.activations() {
                Activations::Kept => block.forward(&x, &input)?,
                Activations::Recomputed => recomputed(block, &x, &input)?,
            };
        }
        self.finish(x)
    }

    /// `x`, then the output of each block: n_layers + 1 tensors `(batch, seq_len, d_model)`. The last has
    /// passed the final norm and equals [`Self::forward`].
    pub fn hidden_states(
        &self,
        x: &Tensor,
        bias: Option<&dyn ScoreBias>,
        input: &BlockInput<'_>,
    ) -> Result<Vec<Tensor>> {
        let mask = biased(input.mask, bias, x)?;
        let input = BlockInput { mask: &mask, ..*input };
        let mut states = vec![x.clone()];
        let mut x = x.clone();
        for (i, block) in self.blocks.iter().enumerate() {
            x = block.forward(&x, &input)?;
            let is_last = i + 1 == self.blocks.len();
            states.push(if is_last { self.finish(x.clone())? } else { x.clone() });
        }
        Ok(states)
    }

    /// The attention weights of each block.
    pub fn maps(
        &self,
        x: &Tensor,
        bias: Option<&dyn ScoreBias>,
        input: &BlockInput<'_>,
    ) -> Result<Vec<BlockMaps>> {
        let mask = biased(input.mask, bias, x)?;
        let input = BlockInput { mask: &mask, ..*input };
        let mut x = x.clone();
        let mut maps = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            let (of_block, output) = block.maps(&x, &input)?;
            maps.push(of_block);
            x = output;
        }
        Ok(maps)
    }

    /// The decoding state before the first position.
    pub fn decoding<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<StackDecoding<'a>> {
        let blocks =
            self.blocks.iter().map(|block| block.decoding(memory)).collect::<Result<_>>()?;
        Ok(StackDecoding { stack: self, blocks })
    }

    fn finish(&self, x: Tensor) -> Result<Tensor> {
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
        self.stack.finish(x)
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
