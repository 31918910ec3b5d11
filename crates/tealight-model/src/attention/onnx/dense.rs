//! Attention with a matrix of weights: softmax and its relatives, over all keys or a window.

use super::{Layer, Output, heads, score};
use crate::attention::projection::Heads;
use crate::attention::score::Score;
use crate::onnx_graph::{Graph, Mask, OnnxResult, Type, Value};

/// Scores this far below the largest of their row have no weight under sparsemax or entmax; lower ones are raised
/// to it, so that their sums and squares stay small.
const NO_WEIGHT: f64 = -2.;

/// The masked scores of a layer.
#[derive(Debug)]
pub(crate) struct Scores<'a> {
    pub(crate) graph: &'a Graph,
    /// `(batch, n_heads, q_len, kv_len)`, far below all others where forbidden.
    pub(crate) matrix: Value,
    pub(crate) mask: Mask,
    /// The number of keys: an integer.
    pub(crate) kv_len: &'a Value,
}

/// P V, where `weights` gives P of the scores: zero where forbidden, and anything in a row that may read nothing.
/// `None` if it gives `None`.
pub(crate) fn attention(
    layer: &Layer<'_>,
    x: &Value,
    heads: Heads,
    score: Score,
    window: Option<usize>,
    weights: impl FnOnce(&Scores<'_>) -> Option<Value>,
) -> OnnxResult<Option<Output>> {
    let (graph, sequence) = (layer.graph(), layer.sequence);
    let qkv = heads::project(layer, x, heads)?;
    let mut scores = score::scores(layer, score, &qkv)?;
    if let Some(bias) = layer.score_bias {
        scores = graph.add(&scores, bias);
    }
    let mask = sequence.mask(window);
    let matrix = graph.add(&scores, &mask.additive);
    let scores = Scores { graph, matrix, mask, kv_len: &sequence.kv_len };
    let Some(weights) = weights(&scores) else { return Ok(None) };
    let context = graph.matmul(&weights, &qkv.value);
    let context = graph.mul(&context, &scores.mask.reads_any);
    Ok(Some(heads::output(layer, qkv, &context)?))
}

/// The same with softmax.
pub(crate) fn softmax(
    layer: &Layer<'_>,
    x: &Value,
    heads: Heads,
    score: Score,
    window: Option<usize>,
) -> OnnxResult<Option<Output>> {
    let weights = |scores: &Scores<'_>| Some(scores.graph.softmax(&scores.matrix, -1));
    attention(layer, x, heads, score, window, weights)
}

/// Rows of scores relative to their largest.
pub(crate) struct Rows {
    /// The scores times a factor, minus the largest of the row, and at least [`NO_WEIGHT`].
    pub(crate) z: Value,
    /// The same, the largest first.
    pub(crate) sorted: Value,
    /// 1, 2, … kv_len
    pub(crate) count: Value,
}

impl Rows {
    pub(crate) fn new(
        Scores { graph, matrix: scores, kv_len, .. }: &Scores<'_>,
        factor: f64,
    ) -> Self {
        let z = graph.sub(scores, &graph.largest(scores, &[-1]));
        let z = graph.max(&graph.scale(&z, factor), &graph.number(NO_WEIGHT));
        let [sorted, _places] = graph.top(&z, kv_len);
        let end = graph.add(kv_len, &graph.int(1));
        let count = graph.cast(&graph.range(&graph.int(1), &end), Type::Float);
        Self { z, sorted, count }
    }
}
