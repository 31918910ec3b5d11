//! One transformer block: attention, optionally a second one over a memory, and a feed-forward
//! network, each a sub-layer with its norm and residual.
//!
//! ```text
//! pre    x ← x + Dropout(f(Norm(x)))          Xiong et al. 2020
//! post   x ← Norm(x + Dropout(f(x)))          Vaswani et al. 2017
//! ```
//!
//! Pre: <https://arxiv.org/abs/2002.04745>. Post: <https://arxiv.org/abs/1706.03762>.

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;
use tealight_ops::residual::residual;

use super::spec::StackSpec;
use crate::attention::decoding::{self, DecodingState};
use crate::attention::{Attention, AttentionInput, Memory, Reads, RowSum};
use crate::config::ModelConfig;
pub use crate::config::NormPlacement;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::feed_forward::{FeedForward, FeedForwardSpec};
use crate::layers::norm::Norm;
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::init::Initializer;
use crate::position::AttentionNeeds;

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
    attention: SubLayer<dyn Attention>,
    cross_attention: Option<SubLayer<dyn Attention>>,
    feed_forward: Option<SubLayer<dyn FeedForward>>,
}

impl Block {
    /// Builds a block; `needs` is what the position scheme asks of its self-attention.
    pub fn build(
        config: &ModelConfig,
        spec: &StackSpec<'_>,
        needs: &AttentionNeeds,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let init = Initializer::build(&config.init, spec.n_layers)?;
        let residual = |name: &str| Residual::build(config, &vb.pp(name));

        let lens = [spec.max_seq_len; 2];
        let mut own = config.attention_spec(&init, spec.attention.key, spec.reads, lens);
        own.position = needs.clone();
        own.packed = spec.packed;
        let attention = SubLayer {
            layer: spec.attention.config.build(&own, &vb.pp("attention"))?,
            residual: residual("attention_residual")?,
        };

        let cross_attention = spec.cross_attention.map(|(place, max_memory_len)| {
            // Positions of two sequences are not on one axis: no scheme applies across them.
            let lens = [spec.max_seq_len, max_memory_len];
            let cross = config.attention_spec(&init, place.key, Reads::Memory, lens);
            BuildResult::Ok(SubLayer {
                layer: place.config.build(&cross, &vb.pp("cross_attention"))?,
                residual: residual("cross_attention_residual")?,
            })
        });

        let feed_forward_spec = FeedForwardSpec {
            d_model: config.d_model,
            dropout: config.dropout,
            bias: config.linear_bias(),
            init: &init,
        };
        let cross_attention = cross_attention.transpose()?;
        let feed_forward = config.feed_forward.build(&feed_forward_spec, &vb.pp("feed_forward"))?;
        let feed_forward = feed_forward.map(|layer| {
            BuildResult::Ok(SubLayer { layer, residual: residual("feed_forward_residual")? })
        });
        Ok(Self { attention, cross_attention, feed_forward: feed_forward.transpose()? })
    }

    /// `x (batch, seq_len, d_model)` → the same shape.
    pub fn forward(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
        let x = self.attend(x, input)?;
        let x = self.attend_across(&x, input)?;
        self.feed_forward(&x, input.mode)
    }

    /// What the block's attentions read, and the block's output, given its input `x`.
    pub fn maps(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<(BlockMaps, Tensor)> {
        let BlockInput { mask, memory, mode } = *input;
        let inner = &self.attention.residual.before(x)?;
        let own = AttentionInput { x: inner, memory: None, mask, mode };
        let attention = AttentionMaps::of(self.attention.layer.as_ref(), &own)?;
        let x = self.attend(x, input)?;
        let cross_attention = match (&self.cross_attention, memory) {
            (Some(SubLayer { layer, residual }), Some(Memory { states, mask })) => {
                let inner = &residual.before(&x)?;
                let input = AttentionInput { x: inner, memory: Some(states), mask, mode };
                Some(AttentionMaps::of(layer.as_ref(), &input)?)
            }
            _ => None,
        };
        let x = self.attend_across(&x, input)?;
        Ok((BlockMaps { attention, cross_attention }, self.feed_forward(&x, mode)?))
    }

    /// The block at the beginning of a sequence whose positions come one after another.
    pub fn decoding<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<BlockDecoding<'a>> {
        let attention = decoding::begin(self.attention.layer.as_ref(), None)?;
        let cross_attention = match (&self.cross_attention, memory) {
            (Some(cross), memory @ Some(_)) => Some(decoding::begin(cross.layer.as_ref(), memory)?),
            (None, None) => None,
            (Some(_), None) => bail!("a block with cross-attention was given no memory"),
            (None, Some(_)) => bail!("a block without cross-attention was given a memory"),
        };
        Ok(BlockDecoding { block: self, attention, cross_attention })
    }

    fn attend(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
        let BlockInput { mask, mode, .. } = *input;
        let SubLayer { layer, residual } = &self.attention;
        residual.around(x, mode, |x| layer.forward(&AttentionInput { x, memory: None, mask, mode }))
    }

    fn attend_across(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
        let BlockInput { memory, mode, .. } = *input;
        match (&self.cross_attention, memory) {
            (Some(SubLayer { layer, residual }), Some(Memory { states, mask })) => {
                residual.around(x, mode, |x| {
                    layer.forward(&AttentionInput { x, memory: Some(states), mask, mode })
                })
            }
            (None, None) => Ok(x.clone()),
            (Some(_), None) => bail!("a block with cross-attention was given no memory"),
            (None, Some(_)) => bail!("a block without cross-attention was given a memory"),
        }
    }

    fn feed_forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor> {
        match &self.feed_forward {
            Some(SubLayer { layer, residual }) => {
                residual.around(x, mode, |x| layer.forward(x, mode))
            }
            None => Ok(x.clone()),
        }
    }
}

/// What one block's attentions read.
#[derive(Debug)]
pub struct BlockMaps {
    /// From its own sequence.
    pub attention: AttentionMaps,
    /// From the memory, where it reads one.
    pub cross_attention: Option<AttentionMaps>,
}

/// What one attention read.
#[derive(Debug)]
pub struct AttentionMaps {
    /// `(batch, n_maps, q_len, kv_len)`
    pub weights: Tensor,
    /// What a row of the weights sums to.
    pub row_sum: RowSum,
    /// Further matrices, by name: `(batch or 1, n_maps, rows, columns)`.
    pub factors: Vec<(&'static str, Tensor)>,
}

impl AttentionMaps {
    fn of(attention: &dyn Attention, input: &AttentionInput<'_>) -> Result<Self> {
        Ok(Self {
            weights: attention.weights(input)?,
            row_sum: attention.row_sum(),
            factors: attention.factors(input)?,
        })
    }
}

/// A block in the middle of a sequence.
#[derive(Debug)]
pub struct BlockDecoding<'a> {
    block: &'a Block,
    attention: Box<dyn DecodingState + 'a>,
    cross_attention: Option<Box<dyn DecodingState + 'a>>,
}

impl BlockDecoding<'_> {
    /// The next positions, `x (batch, n_new, d_model)` → the same shape; see [`DecodingState`].
    pub fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        let Self { block, attention, cross_attention } = self;
        let mode = Mode::Eval;
        let residual = &block.attention.residual;
        let mut x = residual.around(x, mode, |x| attention.step(x, score_bias))?;
        if let (Some(SubLayer { residual, .. }), Some(state)) =
            (&block.cross_attention, cross_attention)
        {
            x = residual.around(&x, mode, |x| state.step(x, None))?;
        }
        block.feed_forward(&x, mode)
    }

    /// Row i goes on from row `rows[i]`.
    pub fn select(&mut self, rows: &Tensor) -> Result<()> {
        self.attention.select(rows)?;
        self.cross_attention.as_mut().map_or(Ok(()), |state| state.select(rows))
    }
}

/// A layer with the norm, the dropout and the sum around it.
#[derive(Debug)]
struct SubLayer<L: ?Sized> {
    residual: Residual,
    layer: Box<L>,
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
        let change = sub_layer(&self.before(x)?)?;
        let sum = if self.keeps_input {
            residual(x, &change, self.dropout.draw(mode))?
        } else {
            self.dropout.forward(&change, mode)?
        };
        match self.placement {
            NormPlacement::Pre => Ok(sum),
            NormPlacement::Post => self.norm.forward(&sum),
        }
    }
}
