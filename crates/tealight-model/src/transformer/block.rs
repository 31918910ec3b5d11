//! One transformer block: self-attention, optionally cross-attention over a memory, and a feed-forward
//! network. Each sub-layer has its own norm and residual sum.
//!
//! ```text
//! pre    x ← x + Dropout(f(Norm(x)))          Xiong et al. 2020
//! post   x ← Norm(x + Dropout(f(x)))          Vaswani et al. 2017
//! output x ← x + Dropout(Norm(f(x)))          Liu et al. 2021, "Swin Transformer V2", §3.2
//! ```
//!
//! where f is the sub-layer. Under `model.stochastic_depth`, training leaves the change of a sub-layer out for some
//! examples (Huang et al. 2016, <https://arxiv.org/abs/1603.09382>): in block l of L with the rate l/L of the
//! setting, eq. (4).
//! Pre: <https://arxiv.org/abs/2002.04745>. Post: <https://arxiv.org/abs/1706.03762>. Output:
//! <https://arxiv.org/abs/2111.09883>; OLMo 2 (2025) has it in every layer, OLMo Hybrid beside pre.

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;
use tealight_ops::embedding::embedding;
use tealight_ops::reshape;
use tealight_ops::residual::residual;
use tealight_ops::stochastic_depth::stochastic_depth;

use super::spec::StackSpec;
use crate::attention::decoding;
use crate::attention::{Attention, AttentionInput, BoxAttention, BoxState, Memory, Reads, RowSum};
use crate::config::ModelConfig;
pub use crate::config::NormPlacement;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::feed_forward::{BoxFeedForward, FeedForwardSpec};
use crate::layers::norm::{BoxNorm, NormConfig};
use crate::mask::Mask;
use crate::mode::Mode;
use crate::params::init::Initializer;
use crate::position::AttentionNeeds;

/// The inputs of a block beside the residual stream.
#[derive(Clone, Copy, Debug)]
pub struct BlockInput<'a> {
    /// Padding and additive masks on the sequence itself.
    pub mask: &'a Mask,
    /// The encoder's output, for a block with cross-attention.
    pub memory: Option<Memory<'a>>,
    /// Training or evaluation.
    pub mode: Mode,
    /// What the attention of an earlier block passed on ([`Attention::passed_on`]).
    pub first: Option<&'a Tensor>,
}

/// Self-attention, cross-attention and feed-forward network around one residual stream.
#[derive(Debug)]
pub struct Block {
    attention: SubLayer<BoxAttention>,
    cross_attention: Option<SubLayer<BoxAttention>>,
    feed_forward: Option<SubLayer<BoxFeedForward>>,
}

impl<'a> BlockInput<'a> {
    /// Without a memory.
    pub fn new(mask: &'a Mask, mode: Mode) -> Self {
        Self { mask, memory: None, mode, first: None }
    }
}

impl Block {
    /// Builds block `i` of a stack. `needs` is what the position scheme does inside self-attention; cross-attention
    /// has no position scheme, as positions of two sequences are not on one axis.
    pub fn build(
        config: &ModelConfig,
        spec: &StackSpec<'_>,
        i: usize,
        needs: &AttentionNeeds,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let init = Initializer::build(&config.init, spec.n_layers)?;

        let lens = [spec.max_seq_len; 2];
        let (kind, key) = spec.attention_of(i);
        let place = spec.place(i);
        let mut self_spec = config.attention_spec(&init, &key, spec.reads, lens, place);
        self_spec.position = needs.clone();
        self_spec.packed = spec.packed;
        let layer = kind.build(&self_spec, &vb.pp("attention"))?;
        let norm = if i > 0 || config.first_norm { &config.norm } else { &NormConfig::None };
        let depth = [i + 1, spec.n_layers];
        let attention = SubLayer::build(layer, norm, depth, config, &vb.pp("attention_residual"))?;

        let cross_attention = spec.cross_attention.map(|(own, max_memory_len)| {
            let lens = [spec.max_seq_len, max_memory_len];
            let cross = config.attention_spec(&init, own.key, Reads::Memory, lens, place);
            let layer = own.config.build(&cross, &vb.pp("cross_attention"))?;
            let vb = vb.pp("cross_attention_residual");
            SubLayer::build(layer, &config.norm, depth, config, &vb)
        });
        let cross_attention = cross_attention.transpose()?;

        let feed_forward_spec = FeedForwardSpec {
            d_model: config.d_model,
            dropout: config.dropout,
            bias: config.linear_bias(),
            init: &init,
        };
        let feed_forward = config.feed_forward.settings();
        let feed_forward = feed_forward.build(&feed_forward_spec, &vb.pp("feed_forward"))?;
        let feed_forward = feed_forward.map(|layer| {
            SubLayer::build(layer, &config.norm, depth, config, &vb.pp("feed_forward_residual"))
        });
        Ok(Self { attention, cross_attention, feed_forward: feed_forward.transpose()? })
    }

    /// `x (batch, seq_len, d_model)` → the same shape.
    ///
    /// # Errors
    /// If the block has cross-attention and there is no memory, or the reverse.
    pub fn forward(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
        self.feed_forward(&self.attended(x, input)?, input.mode)
    }

    /// [`Self::forward`] at some positions only: `x (batch, seq_len, d_model)` → `(n, d_model)`.
    ///
    /// `positions (n)`, of u32, are indices into the batch · seq_len positions of `x`. The feed-forward network is
    /// applied to these only, as it reads one position at a time. In training, its dropout draws other masks than in
    /// [`Self::forward`], and under stochastic depth it is applied to all positions.
    ///
    /// # Errors
    /// As [`Self::forward`], and on the CPU if a position is not one of `x`; on a GPU its state is NaN.
    pub fn forward_at(
        &self,
        x: &Tensor,
        input: &BlockInput<'_>,
        positions: &Tensor,
    ) -> Result<Tensor> {
        let (x, mode) = (self.attended(x, input)?, input.mode);
        // Stochastic depth is drawn for each example, so the network needs to know which positions one has.
        if self.feed_forward.as_ref().is_some_and(|network| network.depth.is_active(mode)) {
            select(&self.feed_forward(&x, mode)?, positions)
        } else {
            self.feed_forward(&select(&x, positions)?, mode)
        }
    }

    /// What the self-attention passes on to later blocks ([`Attention::passed_on`]), for the input `x` of the block.
    pub(super) fn passed_on(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Option<Tensor>> {
        let layer = &self.attention.layer;
        if !layer.passes_on() {
            return Ok(None);
        }
        layer.passed_on(&own_input(&self.attention.layer_input(x)?, input))
    }

    /// The attention weights of the block, and its output, for its input `x`.
    pub fn forward_with_maps(
        &self,
        x: &Tensor,
        input: &BlockInput<'_>,
    ) -> Result<(BlockMaps, Tensor)> {
        let BlockInput { memory, mode, .. } = *input;
        let inner = &self.attention.layer_input(x)?;
        let layer = self.attention.layer.as_ref();
        let attention = AttentionMaps::compute(layer, &own_input(inner, input))?;
        let x = self.self_attention(x, input)?;
        let cross_attention = self.with_memory(memory)?.map(|(cross, memory)| {
            let inner = &cross.layer_input(&x)?;
            AttentionMaps::compute(cross.layer.as_ref(), &cross_input(inner, memory, mode))
        });
        let cross_attention = cross_attention.transpose()?;
        let x = self.cross_attention(&x, input)?;
        Ok((BlockMaps { attention, cross_attention }, self.feed_forward(&x, mode)?))
    }

    /// Queries, keys and values of the self-attention for the input `x` of the block: [`Attention::heads`].
    pub(super) fn heads(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Option<[Tensor; 3]>> {
        let inner = self.attention.layer_input(x)?;
        self.attention.layer.heads(&own_input(&inner, input))
    }

    /// The decoding state before the first position.
    pub fn decoding<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<BlockDecoding<'a>> {
        let attention = decoding::initial_state(self.attention.layer.as_ref(), None)?;
        let cross_attention = self
            .with_memory(memory)?
            .map(|(cross, memory)| decoding::initial_state(cross.layer.as_ref(), Some(memory)));
        Ok(BlockDecoding { block: self, attention, cross_attention: cross_attention.transpose()? })
    }

    /// `x` after all attentions.
    fn attended(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
        self.cross_attention(&self.self_attention(x, input)?, input)
    }

    fn self_attention(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
        let SubLayer { layer, .. } = &self.attention;
        self.attention.around(x, input.mode, |x| layer.forward(&own_input(x, input)))
    }

    fn cross_attention(&self, x: &Tensor, input: &BlockInput<'_>) -> Result<Tensor> {
        let mode = input.mode;
        match self.with_memory(input.memory)? {
            Some((cross, memory)) => {
                cross.around(x, mode, |x| cross.layer.forward(&cross_input(x, memory, mode)))
            }
            None => Ok(x.clone()),
        }
    }

    fn feed_forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor> {
        match &self.feed_forward {
            Some(network) => network.around(x, mode, |x| network.layer.forward(x, mode)),
            None => Ok(x.clone()),
        }
    }

    /// The cross-attention with the memory that it reads; an error if only one of them exists.
    fn with_memory<'a>(
        &'a self,
        memory: Option<Memory<'a>>,
    ) -> Result<Option<(&'a SubLayer<BoxAttention>, Memory<'a>)>> {
        match (&self.cross_attention, memory) {
            (Some(cross), Some(memory)) => Ok(Some((cross, memory))),
            (None, None) => Ok(None),
            (Some(_), None) => bail!("a block with cross-attention was given no memory"),
            (None, Some(_)) => bail!("a block without cross-attention was given a memory"),
        }
    }
}

/// Sets `first` to what a block passes on, unless an earlier one did.
pub(super) fn pass_on(
    first: &mut Option<Tensor>,
    passed_on: impl FnOnce() -> Result<Option<Tensor>>,
) -> Result<()> {
    if first.is_none() {
        *first = passed_on()?;
    }
    Ok(())
}

/// `x (batch, seq_len, d_model)` at `positions (n)`, indices into the batch·seq_len positions: `(n, d_model)`
pub(super) fn select(x: &Tensor, positions: &Tensor) -> Result<Tensor> {
    let (_batch, _seq_len, d_model) = x.dims3()?;
    embedding(&reshape(x, ((), d_model))?, positions)
}

fn own_input<'a>(x: &'a Tensor, input: &BlockInput<'a>) -> AttentionInput<'a> {
    AttentionInput { first: input.first, ..AttentionInput::new(x, input.mask, input.mode) }
}

fn cross_input<'a>(x: &'a Tensor, memory: Memory<'a>, mode: Mode) -> AttentionInput<'a> {
    AttentionInput { memory: Some(memory.states), ..AttentionInput::new(x, memory.mask, mode) }
}

/// The attention weights of one block.
#[derive(Debug)]
pub struct BlockMaps {
    /// Of self-attention.
    pub attention: AttentionMaps,
    /// Of cross-attention, if there is one.
    pub cross_attention: Option<AttentionMaps>,
}

/// The attention weights of one layer.
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
    fn compute(attention: &dyn Attention, input: &AttentionInput<'_>) -> Result<Self> {
        Ok(Self {
            weights: attention.weights(input)?,
            row_sum: attention.row_sum(),
            factors: attention.factors(input)?,
        })
    }
}

/// The decoding state of a block.
#[derive(Debug)]
pub struct BlockDecoding<'a> {
    block: &'a Block,
    attention: BoxState<'a>,
    cross_attention: Option<BoxState<'a>>,
}

impl BlockDecoding<'_> {
    /// Decodes the next positions: `x (batch, n_new, d_model)` → the same shape; see
    /// [`DecodingState`](decoding::DecodingState). `first` is what an earlier block passed on for them; this one puts
    /// there what it passes on itself.
    pub(super) fn step(
        &mut self,
        x: &Tensor,
        score_bias: Option<&Tensor>,
        first: &mut Option<Tensor>,
    ) -> Result<Tensor> {
        let Self { block, attention, cross_attention } = self;
        let mode = Mode::Eval;
        let mut x = block.attention.around(x, mode, |x| {
            pass_on(first, || attention.passed_on(x))?;
            attention.step_after(first.as_ref(), x, score_bias)
        })?;
        if let (Some(cross), Some(state)) = (&block.cross_attention, cross_attention) {
            x = cross.around(&x, mode, |x| state.step(x, None))?;
        }
        block.feed_forward(&x, mode)
    }

    /// Reorders the batch: row i continues from row `rows[i]`.
    pub fn select(&mut self, rows: &Tensor) -> Result<()> {
        self.attention.select(rows)?;
        self.cross_attention.as_mut().map_or(Ok(()), |state| state.select(rows))
    }
}

/// A layer with its norm, dropout and residual sum.
#[derive(Debug)]
struct SubLayer<L> {
    layer: L,
    norm: BoxNorm,
    placement: NormPlacement,
    keeps_input: bool,
    dropout: Dropout,
    /// Dropout of the whole change of an example.
    depth: Dropout,
}

impl<L> SubLayer<L> {
    /// `layer` with a `norm` and dropout at `vb`, in block `l` of `n_layers`, counted from 1.
    fn build(
        layer: L,
        norm: &NormConfig,
        [l, n_layers]: [usize; 2],
        config: &ModelConfig,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        Ok(Self {
            layer,
            norm: norm.build(config.d_model, &vb.pp("norm"))?,
            placement: config.norm_placement_of(l - 1),
            keeps_input: config.residual,
            dropout: Dropout::new(config.dropout, vb),
            depth: Dropout::new(
                config.stochastic_depth * l as f64 / n_layers as f64,
                &vb.pp("depth"),
            ),
        })
    }

    /// The input of the layer: Norm(x) under pre-norm, x otherwise.
    fn layer_input(&self, x: &Tensor) -> Result<Tensor> {
        match self.placement {
            NormPlacement::Pre => self.norm.forward(x),
            NormPlacement::Post | NormPlacement::Output => Ok(x.clone()),
        }
    }

    /// The output of the sub-layer; `f` is that of the module's formula.
    fn around(
        &self,
        x: &Tensor,
        mode: Mode,
        f: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let change = f(&self.layer_input(x)?)?;
        let change = match self.placement {
            NormPlacement::Output => self.norm.forward(&change)?,
            NormPlacement::Pre | NormPlacement::Post => change,
        };
        let sum = match (self.keeps_input, self.depth.draw(mode)) {
            (true, None) => residual(x, &change, self.dropout.draw(mode))?,
            (true, Some(draw)) => stochastic_depth(x, &self.dropout.forward(&change, mode)?, draw)?,
            (false, _) => self.dropout.forward(&change, mode)?,
        };
        match self.placement {
            NormPlacement::Pre | NormPlacement::Output => Ok(sum),
            NormPlacement::Post => self.norm.forward(&sum),
        }
    }
}
