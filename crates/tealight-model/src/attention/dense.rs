//! Attention through a matrix of scores, whatever the scores, and whatever makes weights of them.
//!
//! ```text
//! O = P V,   P = distribution(score(Q, K) + mask)
//! ```
//!
//! What softmax attention over a dot product can do tile by tile, this does in one piece: it keeps
//! O(q_len·kv_len) numbers for each head, and in exchange a distribution may look at a whole row.
//! Queries and keys are rotated before they are scored; additive masks and padding are added to the
//! scores, and what is −∞ after that has no weight.

use std::fmt;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::matmul::matmul;
use tealight_ops::swap_axes::swap_axes;
use tealight_ops::truncated_softmax::{Truncation, truncated_softmax};

use super::cache::{self, Reader};
use super::projection::{self, Projection, merge_heads, repeat_heads};
use super::score::{Score, ScoreFunction};
use super::{
    Attention, AttentionCost, AttentionInput, AttentionSpec, DecodingState, Memory, Reads, RowSum,
};
use crate::dropout::Dropout;
use crate::linear::Linear;
use crate::mask::causal_mask;
use crate::position::rotary::Rotary;
use crate::{BuildResult, Mask, Mode};

/// What makes weights of scores.
pub trait Distribution: fmt::Debug + Send + Sync {
    /// Scores `(.., kv_len)`, −∞ where reading is forbidden → weights of the same shape, zero there.
    /// A row that is −∞ throughout gives zeros.
    fn weights(&self, scores: &Tensor) -> Result<Tensor>;

    /// What a row of the weights sums to.
    fn row_sum(&self) -> RowSum {
        RowSum::One
    }
}

impl Distribution for Truncation {
    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        truncated_softmax(scores, *self)
    }

    fn row_sum(&self) -> RowSum {
        match self {
            Truncation::TopK(_) => RowSum::One,
            // Nothing may be left of a row.
            Truncation::Cut(_) | Truncation::CutRenormalized(_) | Truncation::ScoreCut(_) => {
                RowSum::AtMostOne
            }
        }
    }
}

/// Builds a layer, or says by key why it cannot be built.
pub fn build(
    spec: &AttentionSpec<'_>,
    vb: &VarBuilder<'_>,
    score: Score,
    distribution: impl Distribution + 'static,
) -> BuildResult<Box<dyn Attention>> {
    build_with(spec, vb, Projection::build(spec, vb)?, score, distribution)
}

/// As [`build`], with maps that may share heads.
pub fn build_with(
    spec: &AttentionSpec<'_>,
    vb: &VarBuilder<'_>,
    projection: Projection,
    score: Score,
    distribution: impl Distribution + 'static,
) -> BuildResult<Box<dyn Attention>> {
    Ok(Box::new(Dense {
        score: score.build(spec, vb)?,
        projection,
        output: projection::output(spec, vb)?,
        distribution: Box::new(distribution),
        rotary: spec.rotary(),
        dropout: Dropout::new(spec.dropout, vb),
    }))
}

/// What a layer costs on one sequence, but for what the distribution does.
pub fn cost(spec: &AttentionSpec<'_>, score: Score, q_len: usize, kv_len: usize) -> AttentionCost {
    projection::cost(spec, q_len, kv_len) + core_cost(spec, score, q_len, kv_len)
}

/// As [`cost`], without the maps.
pub fn core_cost(
    spec: &AttentionSpec<'_>,
    score: Score,
    q_len: usize,
    kv_len: usize,
) -> AttentionCost {
    let pairs = q_len as f64 * kv_len as f64;
    let context = AttentionCost {
        parameters: 0.,
        flops: 2. * pairs * spec.d_heads() as f64,
        activations: spec.n_heads as f64 * pairs, // the weights
    };
    score.cost(spec, q_len, kv_len) + context
}

#[derive(Debug)]
struct Dense {
    projection: Projection,
    score: Box<dyn ScoreFunction>,
    distribution: Box<dyn Distribution>,
    output: Linear,
    rotary: Option<Rotary>,
    dropout: Dropout,
}

impl Attention for Dense {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let (query, key, value) = cache::whole(self, input)?;
        self.read(&query, (&key, &value), input.mask, input.mode)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let (query, key, _value) = cache::whole(self, input)?;
        self.attend(&query, &key, input.mask)
    }

    fn row_sum(&self) -> RowSum {
        self.distribution.row_sum()
    }

    fn decoding_state<'a>(
        &'a self,
        memory: Option<Memory<'a>>,
    ) -> Result<Option<Box<dyn DecodingState + 'a>>> {
        cache::begin(self, memory)
    }
}

impl Reader for Dense {
    fn projection(&self) -> &Projection {
        &self.projection
    }

    fn rotary(&self) -> Option<&Rotary> {
        self.rotary.as_ref()
    }

    fn read(
        &self,
        query: &Tensor,
        (key, value): (&Tensor, &Tensor),
        mask: &Mask,
        mode: Mode,
    ) -> Result<Tensor> {
        let weights = self.attend(query, key, mask)?; // (batch, n_heads, q_len, kv_len)
        let (_batch, n_heads, ..) = weights.dims4()?;
        let weights = self.dropout.forward(&weights, mode)?;
        let context = matmul(&weights, &repeat_heads(&swap_axes(value)?, n_heads)?)?;
        self.output.forward(&merge_heads(&context)?)
    }
}

impl Dense {
    fn attend(&self, query: &Tensor, key: &Tensor, mask: &Mask) -> Result<Tensor> {
        let query = swap_axes(query)?; // (batch, n_heads, q_len, head_dim)
        let key = repeat_heads(&swap_axes(key)?, query.dim(1)?)?;
        let scores = self.score.scores(&query, &key)?; // (batch, n_heads, q_len, kv_len)
        self.distribution.weights(&self.causal(mask, &scores)?.apply(&scores)?)
    }

    fn causal(&self, mask: &Mask, scores: &Tensor) -> Result<Mask> {
        if self.projection.reads() != Reads::Past {
            return Ok(mask.clone());
        }
        let (_batch, _n_heads, q_len, kv_len) = scores.dims4()?;
        mask.clone().with_attn_mask(&causal_mask(q_len, kv_len, scores.device())?)
    }
}
