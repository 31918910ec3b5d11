//! Blocks on top of each other: an encoder, a decoder, or a decoder that reads an encoder.

use std::sync::Arc;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::recompute::checkpoint;

use crate::attention::{AttentionConfig, Memory};
use crate::block::{Block, BlockDecoding, BlockInput, BlockMaps, NormPlacement};
use crate::norm::Norm;
use crate::position::{AttentionNeeds, ScoreBias};
use crate::{Activations, BuildResult, Mask, ModelConfig, Reads};

/// Which attention stands in a place, and the table in the TOML that says so.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// The attention's settings.
    pub config: &'a AttentionConfig,
    /// Their table, such as `model.attention`.
    pub key: &'a str,
}

/// What the surrounding model decides for its blocks.
#[derive(Clone, Copy, Debug)]
pub struct StackSpec<'a> {
    /// How a position reads its own sequence.
    pub attention: Place<'a>,
    /// What of it: everything or the past.
    pub reads: Reads,
    /// How a position reads the memory, and the longest memory, where there is one.
    pub cross_attention: Option<(Place<'a>, usize)>,
    /// The longest sequence.
    pub max_seq_len: usize,
    /// Whether a sequence holds several documents, which [`Mask::with_segments`] keeps apart.
    pub packed: bool,
    /// Number of blocks.
    pub n_layers: usize,
}

impl<'a> StackSpec<'a> {
    /// A stack on its own: `[model.attention]`, as causal as `model.causal`.
    pub fn alone(config: &'a ModelConfig, max_seq_len: usize) -> Self {
        let attention = Place { config: &config.attention, key: "model.attention" };
        let (reads, n_layers) = (config.reads(), config.n_layers);
        Self { attention, reads, cross_attention: None, max_seq_len, packed: false, n_layers }
    }
}

/// `n_layers` blocks and, for pre-norm, the norm that ends them.
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

    /// `x (batch, seq_len, d_model)` → the same shape. `bias` is added to every self-attention's
    /// scores.
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

    /// `x` itself, and what stands after each block, as the next reads it; the last is what
    /// [`Self::forward`] gives.
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

    /// What each layer's attentions read.
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

    /// The stack at the beginning of a sequence whose positions come one after another.
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

/// A stack in the middle of a sequence.
#[derive(Debug)]
pub struct StackDecoding<'a> {
    stack: &'a Stack,
    blocks: Vec<BlockDecoding<'a>>,
}

impl StackDecoding<'_> {
    /// The next positions, `x (batch, n_new, d_model)` → the same shape. `score_bias (n_heads, n_new,
    /// positions so far)` is added to every self-attention's scores.
    pub fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        let mut x = x.clone();
        for block in &mut self.blocks {
            x = block.step(&x, score_bias)?;
        }
        self.stack.finish(x)
    }

    /// Row i goes on from row `rows[i]`.
    pub fn select(&mut self, rows: &Tensor) -> Result<()> {
        self.blocks.iter_mut().try_for_each(|block| block.select(rows))
    }
}

/// What `block` gives, which is computed again when a gradient comes back to it.
fn recomputed(block: &Arc<Block>, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
    let (block, x, mask, mode) = (block.clone(), x.clone(), input.mask.clone(), input.mode);
    let memory = input.memory.map(|Memory { states, mask }| (states.clone(), mask.clone()));
    checkpoint(move || {
        let memory = memory.as_ref().map(|(states, mask)| Memory { states, mask });
        block.forward(&x, &BlockInput { mask: &mask, memory, mode })
    })
}

fn biased(mask: &Mask, bias: Option<&dyn ScoreBias>, x: &Tensor) -> Result<Mask> {
    let Some(bias) = bias else { return Ok(mask.clone()) };
    let (_batch, seq_len, _d_model) = x.dims3()?;
    mask.clone().with_attn_mask(&bias.bias(seq_len, seq_len)?)
}
