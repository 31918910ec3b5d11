//! Blocks on top of each other: an encoder, a decoder, or a decoder that reads an encoder.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use crate::block::{Block, BlockInput, CrossAttention, NormPlacement};
use crate::norm::Norm;
use crate::position::{AttentionNeeds, ScoreBias};
use crate::{BuildResult, Mask, ModelConfig};

/// `n_layers` blocks and, for pre-norm, the norm that ends them.
#[derive(Debug)]
pub struct Stack {
    blocks: Vec<Block>,
    final_norm: Option<Box<dyn Norm>>,
}

impl Stack {
    /// Builds the blocks `layer.0`, `layer.1`, … and `final_norm`.
    pub fn build(
        config: &ModelConfig,
        max_seq_len: usize,
        needs: &AttentionNeeds,
        cross: CrossAttention,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let layer = |i| Block::build(config, max_seq_len, needs, cross, &vb.pp("layer").pp(i));
        let blocks = (0..config.n_layers).map(layer).collect::<BuildResult<_>>()?;
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
            x = block.forward(&x, &input)?;
        }
        match &self.final_norm {
            Some(norm) => norm.forward(&x),
            None => Ok(x),
        }
    }

    /// What each layer's self-attention read: `n_layers` × `(batch, n_maps, seq_len, seq_len)`.
    pub fn attention_weights(
        &self,
        x: &Tensor,
        bias: Option<&dyn ScoreBias>,
        input: &BlockInput<'_>,
    ) -> Result<Vec<Tensor>> {
        let mask = biased(input.mask, bias, x)?;
        let input = BlockInput { mask: &mask, ..*input };
        let mut x = x.clone();
        let mut weights = Vec::with_capacity(self.blocks.len());
        for block in &self.blocks {
            weights.push(block.attention_weights(&x, &input)?);
            x = block.forward(&x, &input)?;
        }
        Ok(weights)
    }

    /// Operations of all attention cores on one sequence, beyond the linear maps.
    pub fn attention_flops(&self, seq_len: usize, memory_len: usize) -> u64 {
        self.blocks.iter().map(|block| block.attention_flops(seq_len, memory_len)).sum()
    }
}

fn biased(mask: &Mask, bias: Option<&dyn ScoreBias>, x: &Tensor) -> Result<Mask> {
    let Some(bias) = bias else { return Ok(mask.clone()) };
    let (_batch, seq_len, _d_model) = x.dims3()?;
    mask.clone().with_attn_mask(&bias.bias(seq_len, seq_len)?)
}
