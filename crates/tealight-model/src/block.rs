//! One transformer block: attention, optionally a second one over a memory, and a feed-forward
//! network, each a sub-layer with its norm and residual.
//!
//! ```text
//! pre    x ← x + Dropout(f(Norm(x)))          Xiong et al. 2020
//! post   x ← Norm(x + Dropout(f(x)))          Vaswani et al. 2017
//! ```
//!
//! Pre: <https://arxiv.org/abs/2002.04745>. Post: <https://arxiv.org/abs/1706.03762>.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use crate::attention::{Attention, AttentionInput, AttentionSpec, Reads};
use crate::dropout::Dropout;
use crate::feed_forward::{FeedForward, FeedForwardSpec};
use crate::norm::Norm;
use crate::position::AttentionNeeds;
use crate::{BuildResult, Mask, Mode, ModelConfig, names};

names! {
    /// Where the norm stands in a sub-layer.
    pub enum NormPlacement {
        /// Before the sub-layer; the stack ends with one more norm.
        "pre" => Pre,
        /// After the residual sum.
        "post" => Post,
    }
}

/// What a block reads besides its own sequence.
#[derive(Clone, Copy, Debug)]
pub struct Memory<'a> {
    /// `(batch, kv_len, d_model)`
    pub states: &'a Tensor,
    /// Padding and additive masks on the memory.
    pub mask: &'a Mask,
}

/// What varies from call to call.
#[derive(Clone, Copy, Debug)]
pub struct BlockInput<'a> {
    /// Padding and additive masks on the sequence itself.
    pub mask: &'a Mask,
    /// What a decoder with cross-attention reads.
    pub memory: Option<Memory<'a>>,
    /// Training or evaluation.
    pub mode: Mode,
}

/// Attention, cross-attention and feed-forward network around one residual stream.
#[derive(Debug)]
pub struct Block {
    attention: Box<dyn Attention>,
    cross_attention: Option<Box<dyn Attention>>,
    feed_forward: Option<Box<dyn FeedForward>>,
    attention_residual: Residual,
    cross_attention_residual: Option<Residual>,
    feed_forward_residual: Option<Residual>,
}

/// Whether a block reads a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrossAttention {
    /// An encoder, or a decoder on its own.
    Without,
    /// A decoder that reads an encoder's output.
    With,
}

impl Block {
    /// Builds a block; `needs` is what the position scheme asks of its self-attention.
    pub fn build(
        config: &ModelConfig,
        max_seq_len: usize,
        needs: &AttentionNeeds,
        cross: CrossAttention,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let init = config.initializer()?;
        let spec = |reads, position| AttentionSpec {
            d_model: config.d_model,
            n_heads: config.n_heads,
            max_seq_len,
            reads,
            dropout: config.dropout,
            bias: config.linear_bias(),
            position,
            init: &init,
        };
        let attend =
            |name, reads, position| config.attention.build(&spec(reads, position), &vb.pp(name));
        let residual = |name: &str| Residual::build(config, &vb.pp(name));

        let attention = attend("attention", config.reads(), needs.clone())?;
        let attention_residual = residual("attention_residual")?;
        let (cross_attention, cross_attention_residual) = match cross {
            CrossAttention::Without => (None, None),
            CrossAttention::With => (
                // Positions of two sequences are not on one axis: no scheme applies across them.
                Some(attend("cross_attention", Reads::Memory, AttentionNeeds::Nothing)?),
                Some(residual("cross_attention_residual")?),
            ),
        };
        let feed_forward_spec = FeedForwardSpec {
            d_model: config.d_model,
            dropout: config.dropout,
            bias: config.linear_bias(),
            init: &init,
        };
        let feed_forward = config.feed_forward.build(&feed_forward_spec, &vb.pp("feed_forward"))?;
        let feed_forward_residual =
            feed_forward.as_ref().map(|_| residual("feed_forward_residual")).transpose()?;
        Ok(Self {
            attention,
            cross_attention,
            feed_forward,
            attention_residual,
            cross_attention_residual,
            feed_forward_residual,
        })
    }

    /// `x (batch, seq_len, d_model)` → the same shape.
    pub fn forward(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
        let BlockInput { mask, memory, mode } = *input;
        if memory.is_some() && self.cross_attention.is_none() {
            candle_core::bail!("a block without cross-attention was given a memory")
        }
        let mut x = self.attention_residual.around(x, mode, |x| {
            self.attention.forward(&AttentionInput { x, memory: None, mask, mode })
        })?;
        if let (Some(attention), Some(residual)) =
            (&self.cross_attention, &self.cross_attention_residual)
        {
            let Some(Memory { states, mask }) = memory else {
                candle_core::bail!("a block with cross-attention was given no memory")
            };
            x = residual.around(&x, mode, |x| {
                attention.forward(&AttentionInput { x, memory: Some(states), mask, mode })
            })?;
        }
        if let (Some(network), Some(residual)) = (&self.feed_forward, &self.feed_forward_residual) {
            x = residual.around(&x, mode, |x| network.forward(x, mode))?;
        }
        Ok(x)
    }

    /// What the self-attention read, given the block's input `x`: `(batch, n_maps, q_len, kv_len)`.
    pub fn attention_weights(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
        let BlockInput { mask, mode, .. } = *input;
        let x = &self.attention_residual.before(x)?;
        self.attention.weights(&AttentionInput { x, memory: None, mask, mode })
    }

    /// Operations of the attention cores on one sequence, beyond the linear maps.
    pub fn attention_flops(&self, seq_len: usize, memory_len: usize) -> u64 {
        let cross = self.cross_attention.as_ref();
        self.attention.flops(seq_len, seq_len)
            + cross.map_or(0, |attention| attention.flops(seq_len, memory_len))
    }
}

/// The norm, the dropout and the sum around a sub-layer.
#[derive(Debug)]
struct Residual {
    norm: Box<dyn Norm>,
    placement: NormPlacement,
    keeps_input: bool,
    dropout: Dropout,
}

impl Residual {
    fn build(config: &ModelConfig, vb: &VarBuilder<'_>) -> BuildResult<Self> {
        Ok(Self {
            norm: config.norm.build(config.d_model, &vb.pp("norm"))?,
            placement: config.norm_placement,
            keeps_input: config.residual,
            dropout: Dropout::new(config.dropout, vb),
        })
    }

    /// What the sub-layer sees of `x`.
    fn before(&self, x: &Tensor) -> Result<Tensor> {
        match self.placement {
            NormPlacement::Pre => self.norm.forward(x),
            NormPlacement::Post => Ok(x.clone()),
        }
    }

    fn around(
        &self,
        x: &Tensor,
        mode: Mode,
        sub_layer: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let change = self.dropout.forward(&sub_layer(&self.before(x)?)?, mode)?;
        let sum = if self.keeps_input { (x + change)? } else { change };
        match self.placement {
            NormPlacement::Pre => Ok(sum),
            NormPlacement::Post => self.norm.forward(&sum),
        }
    }
}
