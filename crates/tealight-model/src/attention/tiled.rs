//! Softmax attention whose scores are products, without their matrix: the layer of
//! [`softmax`](super::softmax) and of [`local`](super::local).

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::attention::{Layout, Options, attention, weights};

use super::cache::{self, Reader};
use super::projection::{self, Projection};
use super::score::{Score, ScoreFunction};
use super::{
    Attention, AttentionCost, AttentionInput, AttentionSpec, DecodingState, Memory, Reads,
};
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::mask::Mask;
use crate::mode::Mode;
use crate::position::rotary::Rotary;

/// What `read` costs on one sequence whose queries meet `n_keys` keys each: per row, the maximum and
/// the sum are kept, and nothing per pair.
pub(super) fn cost(
    spec: &AttentionSpec<'_>,
    score: Score,
    q_len: usize,
    n_keys: f64,
) -> AttentionCost {
    let pairs = AttentionCost {
        parameters: 0.,
        // Q Kᵀ and the weighted sum of V.
        flops: 2. * 2. * q_len as f64 * n_keys * spec.d_heads() as f64,
        activations: 2. * spec.n_heads as f64 * q_len as f64,
    };
    pairs + score.parameters_cost(spec, q_len)
}

#[derive(Debug)]
pub(super) struct Tiled {
    projection: Projection,
    output: Linear,
    score: Box<dyn ScoreFunction>,
    window: Option<usize>,
    rotary: Option<Rotary>,
    dropout: Dropout,
}

impl Tiled {
    /// `score` is a product.
    pub(super) fn build(
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
        projection: Projection,
        score: Score,
        window: Option<usize>,
    ) -> BuildResult<Self> {
        Ok(Self {
            projection,
            score: score.build(spec, vb)?,
            output: projection::output(spec, vb)?,
            window,
            rotary: spec.rotary(),
            dropout: Dropout::new(spec.dropout, vb),
        })
    }

    fn options<'a>(&self, scale: f64, mask: &'a Mask, mode: Mode) -> Options<'a> {
        Options {
            scale: Some(scale),
            causal: self.projection.reads() == Reads::Past,
            window: self.window,
            dropout: self.dropout.draw(mode),
            key_padding_mask: mask.key_padding_mask(),
            segments: mask.segments(),
            bias: mask.attn_mask(),
            layout: Layout::HeadsLast,
        }
    }
}

impl Attention for Tiled {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let (query, key, value) = cache::whole(self, input)?;
        self.read(&query, (&key, &value), input.mask, input.mode)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let (query, key, _value) = cache::whole(self, input)?;
        let (query, scale) = self.score.factors(&query)?;
        weights(&query, &key, &self.options(scale, input.mask, Mode::Eval))
    }

    fn decoding_state<'a>(
        &'a self,
        memory: Option<Memory<'a>>,
    ) -> Result<Option<Box<dyn DecodingState + 'a>>> {
        cache::begin(self, memory)
    }
}

impl Reader for Tiled {
    fn projection(&self) -> &Projection {
        &self.projection
    }

    fn rotary(&self) -> Option<&Rotary> {
        self.rotary.as_ref()
    }

    fn window(&self) -> Option<usize> {
        self.window
    }

    fn read(
        &self,
        query: &Tensor,
        (key, value): (&Tensor, &Tensor),
        mask: &Mask,
        mode: Mode,
    ) -> Result<Tensor> {
        let (query, scale) = self.score.factors(query)?;
        let context = attention(&query, key, value, &self.options(scale, mask, mode))?;
        self.output.forward(&projection::side_by_side(&context)?)
    }
}
