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

use super::cache::{self, KeyValueLayer, LinearMaps};
use super::onnx::dense::Scores;
use super::onnx::{self, Layer, Output};
use super::projection::{self, Heads, Projection, merge_heads, repeat_heads};
use super::reduces_to::ReducesTo;
use super::score::{Score, ScoreFunction};
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    Memory, Reads, RowSum,
};
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::mask::{Mask, causal_mask};
use crate::mode::Mode;
use crate::onnx_graph::{OnnxResult, Value};

/// A kind that turns each row of scores into weights. The layer keeps its settings.
pub(super) trait DenseKind: fmt::Debug + Clone + Send + Sync + 'static {
    /// How similar a query is to a key.
    fn score(&self) -> Score;

    /// Refuses settings that are out of range.
    fn validate(&self, _spec: &AttentionSpec<'_>) -> BuildResult<()> {
        Ok(())
    }

    /// Scores `(.., kv_len)`, −∞ where masked → weights of the same shape, zero there. A row that is −∞
    /// throughout gives zeros.
    fn weights(&self, scores: &Tensor) -> Result<Tensor>;

    /// What a row of the weights sums to.
    fn row_sum(&self) -> RowSum {
        RowSum::One
    }

    /// As [`AttentionKind::reduces_to`].
    fn reduces_to(&self, _len: usize) -> Option<ReducesTo> {
        None
    }

    /// The weights in a graph of ONNX, `(batch, n_heads, q_len, kv_len)`: zero where forbidden, and anything in a row
    /// that may read nothing. `None`: the kind has no such graph.
    fn onnx_weights(&self, _scores: &Scores<'_>) -> Option<Value> {
        None
    }
}

impl<K: DenseKind> AttentionKind for K {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        self.validate(spec)?;
        build(spec, vb, Heads::default(), self)
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        projection::cost(spec, [q_len, kv_len]) + cost(spec, self.score(), [q_len, kv_len])
    }

    fn reduces_to(&self, len: usize) -> Option<ReducesTo> {
        DenseKind::reduces_to(self, len)
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        let weights = |scores: &Scores<'_>| self.onnx_weights(scores);
        onnx::dense::attention(layer, x, Heads::default(), self.score(), None, weights)
    }
}

/// Builds a layer of valid settings.
pub(super) fn build(
    spec: &AttentionSpec<'_>,
    vb: &VarBuilder<'_>,
    heads: Heads,
    kind: &impl DenseKind,
) -> BuildResult<BoxAttention> {
    Ok(Box::new(Dense {
        projection: Projection::build(spec, vb, heads)?,
        score: kind.score().build(spec, vb)?,
        kind: kind.clone(),
        dropout: Dropout::new(spec.dropout, vb),
        output: projection::output(spec, vb)?,
    }))
}

/// The cost of a layer without its linear maps and the step from scores to weights.
pub(super) fn cost(spec: &AttentionSpec<'_>, score: Score, lens: [usize; 2]) -> AttentionCost {
    let [q_len, kv_len] = lens;
    let pairs = q_len as f64 * kv_len as f64;
    let context = AttentionCost {
        parameters: 0.,
        flops: 2. * pairs * spec.d_heads() as f64,
        activations: spec.n_heads as f64 * pairs, // the weights
    };
    score.cost(spec, q_len, kv_len) + context
}

#[derive(Debug)]
struct Dense<K> {
    projection: Projection,
    score: ScoreFunction,
    kind: K,
    dropout: Dropout,
    output: Linear,
}

impl<K: DenseKind> Attention for Dense<K> {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let qkv = self.projection.project_rotated(input)?;
        let heads = self.attend(&qkv, input.mask, input.mode)?;
        self.output.forward(&heads) // (batch, q_len, d_model)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let [query, key, _value] = self.projection.project_rotated(input)?;
        self.distribute(&query, &key, input.mask)
    }

    fn row_sum(&self) -> RowSum {
        self.kind.row_sum()
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        cache::decoding_state(self, memory)
    }
}

impl<K: DenseKind> Dense<K> {
    /// P, `(batch, n_heads, q_len, kv_len)`
    fn distribute(&self, query: &Tensor, key: &Tensor, mask: &Mask) -> Result<Tensor> {
        let query = swap_axes(query)?; // (batch, n_heads, q_len, head_dim)
        let (_batch, n_heads, _q_len, _head_dim) = query.dims4()?;
        let key = repeat_heads(&swap_axes(key)?, n_heads)?;
        let scores = self.score.scores(&query, &key)?; // (batch, n_heads, q_len, kv_len)
        let mut mask = mask.clone();
        if self.projection.reads() == Reads::Past {
            let (_batch, _n_heads, q_len, kv_len) = scores.dims4()?;
            mask = mask.with_attn_mask(&causal_mask(q_len, kv_len, scores.device())?)?;
        }
        self.kind.weights(&mask.apply(&scores)?)
    }
}

impl<K: DenseKind> KeyValueLayer for Dense<K> {
    fn maps(&self) -> LinearMaps<'_> {
        LinearMaps { projection: &self.projection, output: &self.output, window: None }
    }

    /// P V
    fn attend(&self, [query, key, value]: &[Tensor; 3], mask: &Mask, mode: Mode) -> Result<Tensor> {
        let weights = self.distribute(query, key, mask)?; // (batch, n_heads, q_len, kv_len)
        let (_batch, n_heads, ..) = weights.dims4()?;
        let weights = self.dropout.forward(&weights, mode)?;
        merge_heads(&matmul(&weights, &repeat_heads(&swap_axes(value)?, n_heads)?)?)
    }
}
