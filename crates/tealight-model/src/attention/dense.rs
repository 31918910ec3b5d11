//! Attention through a whole matrix of scores, for any score and any distribution over a row of them.
//!
//! ```text
//! O = P V,   P = distribution(score(Q, K) + mask)
//! ```
//!
//! Unlike the tiles of [`softmax`](super::softmax), a distribution may look at a whole row (sparsemax sorts it). Long
//! sequences are computed some rows at a time, and the backward pass computes them again: memory is O(T·rows) for each
//! head. In a causal layer these rows read no key that comes after the last of them. Queries and keys are rotated before they
//! are scored; additive masks and padding are added to the scores, and a score of −∞ gets no weight.

use std::fmt;

use candle_core::{Result, Tensor, bail};
use candle_nn::VarBuilder;
use tealight_ops::dropout::{Draw, dropout};
use tealight_ops::matmul::matmul;
use tealight_ops::recompute::checkpoint;
use tealight_ops::swap_axes::swap_axes;

use super::cache::{self, CachedLayer};
use super::onnx::dense::Scores;
use super::onnx::{self, Layer, Output};
use super::output_gate::OutputGate;
use super::parts::Parts;
use super::projection::{self, Heads, Projection, merge_heads, repeat_heads};
use super::reduces_to::ReducesTo;
use super::score::{Score, ScoreFunction};
use super::short_convolution::Before;
use super::sink::Sink;
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

    /// As [`AttentionKind::conv_size`].
    fn conv_size(&self) -> usize {
        0
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

    fn conv_size(&self) -> usize {
        DenseKind::conv_size(self)
    }

    fn reduces_to(&self, len: usize) -> Option<ReducesTo> {
        DenseKind::reduces_to(self, len)
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        let weights = |scores: &Scores<'_>| self.onnx_weights(scores);
        let parts = Parts {
            heads: Heads::default(),
            score: self.score(),
            window: None,
            sink: Sink::None,
            output_gate: OutputGate::None,
        };
        onnx::dense::attention(layer, x, parts, weights)
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
        rows: Rows {
            score: kind.score().build(spec, vb)?,
            kind: kind.clone(),
            causal: spec.reads == Reads::Past,
        },
        dropout: Dropout::new(spec.dropout, vb),
        output: projection::output(spec, vb)?,
    }))
}

/// The cost of a layer without its linear maps and the step from scores to weights.
pub(super) fn cost(spec: &AttentionSpec<'_>, score: Score, lens: [usize; 2]) -> AttentionCost {
    let [q_len, kv_len] = lens;
    // In one go, weights and scores of all rows are kept; else the heads, and those of some rows at a time.
    let rows = q_len.min(ROWS);
    let of_rows = score.cost(spec, rows, kv_len).activations;
    let all = score.cost(spec, q_len, kv_len);
    AttentionCost {
        parameters: all.parameters,
        flops: all.flops + 2. * q_len as f64 * kv_len as f64 * spec.d_heads() as f64,
        activations: of_rows + spec.n_heads as f64 * rows as f64 * kv_len as f64,
    }
}

#[derive(Debug)]
struct Dense<K> {
    projection: Projection,
    rows: Rows<K>,
    dropout: Dropout,
    output: Linear,
}

/// The queries that are scored at a time: fewer would give small products, more would not fit in a cache.
const ROWS: usize = 128;

/// What turns rows of queries into weights and heads.
#[derive(Clone, Debug)]
struct Rows<K> {
    score: ScoreFunction,
    kind: K,
    causal: bool,
}

impl<K: DenseKind> Rows<K> {
    /// P, `(batch, n_heads, q_len, kv_len)`; the first query is row `first` of the mask.
    fn distribute(
        &self,
        query: &Tensor,
        key: &Tensor,
        mask: &Mask,
        first: usize,
    ) -> Result<Tensor> {
        let query = swap_axes(query)?; // (batch, n_heads, q_len, head_dim)
        let (_batch, n_heads, _q_len, _head_dim) = query.dims4()?;
        let key = repeat_heads(&swap_axes(key)?, n_heads)?;
        let scores = self.score.scores(&query, &key)?; // (batch, n_heads, q_len, kv_len)
        let mut scores = mask.apply_to_rows(&scores, first)?;
        if self.causal {
            let (_batch, _n_heads, q_len, kv_len) = scores.dims4()?;
            let future = causal_mask(q_len, kv_len, scores.device())?;
            scores = scores.broadcast_add(&future.to_dtype(scores.dtype())?)?;
        }
        self.kind.weights(&scores)
    }

    /// P V with dropout by `drop`, `(batch, q_len, n_heads·head_dim)`
    fn heads(
        &self,
        [query, key, value]: [&Tensor; 3],
        mask: &Mask,
        first: usize,
        drop: impl Fn(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let weights = drop(&self.distribute(query, key, mask, first)?)?;
        let (_batch, n_heads, ..) = weights.dims4()?;
        merge_heads(&matmul(&weights, &repeat_heads(&swap_axes(value)?, n_heads)?)?)
    }
}

impl<K: DenseKind> Attention for Dense<K> {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let [query, key, value] = self.projection.project_rotated(input)?;
        let heads = self.attend(&query, &[key, value], input.mask, input.mode)?;
        self.output.forward(&heads) // (batch, q_len, d_model)
    }

    fn heads(&self, input: &AttentionInput<'_>) -> Result<Option<[Tensor; 3]>> {
        if !self.rows.kind.score().is_product() {
            return Ok(None);
        }
        let [query, key, value] = self.projection.project_rotated(input)?;
        Ok(Some([self.rows.score.as_product(&query)?.0, key, value]))
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let [query, key, _value] = self.projection.project_rotated(input)?;
        input.mask.check_lens(query.dim(1)?, key.dim(1)?)?;
        self.rows.distribute(&query, &key, input.mask, 0)
    }

    fn row_sum(&self) -> RowSum {
        self.rows.kind.row_sum()
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        cache::decoding_state(self, memory)
    }
}

impl<K: DenseKind> CachedLayer for Dense<K> {
    fn reads(&self) -> Reads {
        self.projection.reads()
    }

    fn queries(&self, x: &Tensor, start: usize, before: &mut Before<'_>) -> Result<Tensor> {
        self.projection.queries(x, start, before)
    }

    fn cached(
        &self,
        source: &Tensor,
        start: usize,
        before: &mut Before<'_>,
    ) -> Result<Vec<Tensor>> {
        let (key, value) = self.projection.keys_and_values(source, start, before)?;
        Ok(vec![key, value])
    }

    /// P V
    fn attend(&self, query: &Tensor, cached: &[Tensor], mask: &Mask, mode: Mode) -> Result<Tensor> {
        let [key, value] = cached else { bail!("a cache of {} tensors", cached.len()) };
        let (q_len, kv_len) = (query.dim(1)?, key.dim(1)?);
        mask.check_lens(q_len, kv_len)?;
        if q_len <= ROWS {
            let drop = |weights: &Tensor| self.dropout.forward(weights, mode);
            return self.rows.heads([query, key, value], mask, 0, drop);
        }
        let mut heads = Vec::with_capacity(q_len.div_ceil(ROWS));
        for first in (0..q_len).step_by(ROWS) {
            let n_rows = ROWS.min(q_len - first);
            let n_keys = if self.rows.causal { first + n_rows + kv_len - q_len } else { kv_len };
            let query = query.narrow(1, first, n_rows)?;
            let [key, value] = [key, value].map(|x| x.narrow(1, 0, n_keys));
            let (key, value, mask) = (key?, value?, mask.clone());
            let (rows, draw) = (self.rows.clone(), self.dropout.draw(mode));
            heads.push(checkpoint(move || {
                rows.heads([&query, &key, &value], &mask, first, |weights| match draw {
                    Some(Draw { rate, stream }) => {
                        dropout(weights, rate, stream.fork(first as u64))
                    }
                    None => Ok(weights.clone()),
                })
            })?);
        }
        Tensor::cat(&heads, 1)
    }

    fn output(&self, _x: &Tensor, heads: &Tensor) -> Result<Tensor> {
        self.output.forward(heads)
    }
}
