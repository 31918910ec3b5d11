//! Attention through a whole matrix of scores, for any score and any distribution over a row of them.
//!
//! ```text
//! O = P V,   P = distribution(score(Q, K) + mask)
//! ```
//!
//! Unlike the tiles of [`softmax`](super::softmax) it keeps O(q_len·kv_len) numbers for each head, so a
//! distribution may look at a whole row (sparsemax sorts it). Queries and keys are rotated before they
//! are scored; additive masks and padding are added to the scores, and a score of −∞ gets no weight.

use std::fmt;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::matmul::matmul;
use tealight_ops::swap_axes::swap_axes;

use super::cache::{self, KeyValueLayer, Maps};
use super::projection::{self, Heads, Projection, merge_heads, repeat_heads};
use super::score::{Score, ScoreFunction};
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, DecodingState, Memory,
    Reads, RowSum,
};
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::mask::{Mask, causal_mask};
use crate::mode::Mode;
use crate::position::rotary::Rotary;

/// Turns a row of scores into weights.
pub trait Distribution: fmt::Debug + Send + Sync {
    /// Scores `(.., kv_len)`, −∞ where masked → weights of the same shape, zero there. A row that is −∞
    /// throughout gives zeros.
    fn weights(&self, scores: &Tensor) -> Result<Tensor>;

    /// What a row of the weights sums to.
    fn row_sum(&self) -> RowSum {
        RowSum::One
    }
}

/// The settings of a kind that is built by this module; they serve as its distribution, too.
pub(super) trait DenseKind: Distribution + Clone + 'static {
    /// How similar a query is to a key.
    fn score(&self) -> Score;

    /// Refuses settings that are out of range.
    fn validate(&self, _spec: &AttentionSpec<'_>) -> BuildResult<()> {
        Ok(())
    }
}

impl<K: DenseKind> AttentionKind for K {
    fn build(
        &self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Box<dyn Attention>> {
        self.validate(spec)?;
        build(spec, vb, Heads::default(), self.score(), self.clone())
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        projection::cost(spec, q_len, kv_len) + cost(spec, self.score(), q_len, kv_len)
    }
}

/// Builds a layer, or says by key why it cannot be built.
pub(super) fn build(
    spec: &AttentionSpec<'_>,
    vb: &VarBuilder<'_>,
    heads: Heads,
    score: Score,
    distribution: impl Distribution + 'static,
) -> BuildResult<Box<dyn Attention>> {
    Ok(Box::new(Dense {
        projection: Projection::with(spec, vb, heads)?,
        rotary: spec.rotary(),
        score: score.build(spec, vb)?,
        distribution: Box::new(distribution),
        dropout: Dropout::new(spec.dropout, vb),
        output: projection::output(spec, vb)?,
    }))
}

/// The cost of a layer without its maps and its distribution.
pub(super) fn cost(
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
    rotary: Option<Rotary>,
    score: Box<dyn ScoreFunction>,
    distribution: Box<dyn Distribution>,
    dropout: Dropout,
    output: Linear,
}

impl Attention for Dense {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let (query, key, value) = self.projection.project_rotated(input, self.rotary.as_ref())?;
        let heads = self.attend(&query, (&key, &value), input.mask, input.mode)?;
        self.output.forward(&heads) // (batch, q_len, d_model)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let (query, key, _) = self.projection.project_rotated(input, self.rotary.as_ref())?;
        self.distribute(&query, &key, input.mask)
    }

    fn row_sum(&self) -> RowSum {
        self.distribution.row_sum()
    }

    fn decoding_state<'a>(
        &'a self,
        memory: Option<Memory<'a>>,
    ) -> Result<Option<Box<dyn DecodingState + 'a>>> {
        cache::decoding_state(self, memory)
    }
}

impl Dense {
    /// P V: `query (batch, q_len, n_heads, head_dim)`, `key` and `value (batch, kv_len, n_kv_heads,
    /// head_dim)` → the heads concatenated, `(batch, q_len, n_heads·head_dim)`
    fn attend(
        &self,
        query: &Tensor,
        (key, value): (&Tensor, &Tensor),
        mask: &Mask,
        mode: Mode,
    ) -> Result<Tensor> {
        let weights = self.distribute(query, key, mask)?; // (batch, n_heads, q_len, kv_len)
        let (_batch, n_heads, ..) = weights.dims4()?;
        let weights = self.dropout.forward(&weights, mode)?;
        merge_heads(&matmul(&weights, &repeat_heads(&swap_axes(value)?, n_heads)?)?)
    }

    /// P, `(batch, n_heads, q_len, kv_len)`
    fn distribute(&self, query: &Tensor, key: &Tensor, mask: &Mask) -> Result<Tensor> {
        let query = swap_axes(query)?; // (batch, n_heads, q_len, head_dim)
        let key = repeat_heads(&swap_axes(key)?, query.dim(1)?)?;
        let scores = self.score.scores(&query, &key)?; // (batch, n_heads, q_len, kv_len)
        self.distribution.weights(&self.with_causality(mask, &scores)?.apply(&scores)?)
    }

    /// `mask`, with later keys masked in a causal layer.
    fn with_causality(&self, mask: &Mask, scores: &Tensor) -> Result<Mask> {
        if self.projection.reads() != Reads::Past {
            return Ok(mask.clone());
        }
        let (_batch, _n_heads, q_len, kv_len) = scores.dims4()?;
        mask.clone().with_attn_mask(&causal_mask(q_len, kv_len, scores.device())?)
    }
}

impl KeyValueLayer for Dense {
    fn maps(&self) -> Maps<'_> {
        let Self { projection, output, .. } = self;
        Maps { projection, rotary: self.rotary.as_ref(), output, window: None }
    }

    fn attend_eval(&self, query: &Tensor, kept: (&Tensor, &Tensor), mask: &Mask) -> Result<Tensor> {
        self.attend(query, kept, mask, Mode::Eval)
    }
}
