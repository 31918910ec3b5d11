//! Attention with a matrix of weights: softmax and its relatives, over all keys or a window.

use super::heads;
use super::layer::{Layer, Output};
use super::score;
use crate::attention::projection::Heads;
use crate::attention::score::Score;
use crate::onnx_graph::{Graph, Mask, OnnxResult, Value};

/// The masked scores of a layer.
#[derive(Debug)]
pub(super) struct Scores<'a> {
    pub(super) graph: &'a Graph,
    /// `(batch, n_heads, q_len, kv_len)`, far below all others where forbidden.
    pub(super) matrix: Value,
    pub(super) mask: Mask,
    /// The number of keys: an integer.
    pub(super) kv_len: &'a Value,
}

/// P V, where `weights` gives P of the scores: zero where forbidden, and anything in a row that may read nothing.
pub(super) fn attention(
    layer: &Layer<'_>,
    x: &Value,
    heads: Heads,
    score: Score,
    window: Option<usize>,
    weights: impl FnOnce(&Scores<'_>) -> Value,
) -> OnnxResult<Output> {
    let (graph, sequence) = (layer.graph(), layer.sequence);
    let qkv = heads::project(layer, x, heads)?;
    let mut scores = score::scores(layer, score, &qkv)?;
    if let Some(bias) = layer.score_bias {
        scores = graph.add(&scores, bias);
    }
    let mask = sequence.mask(window);
    let matrix = graph.add(&scores, &mask.additive);
    let scores = Scores { graph, matrix, mask, kv_len: &sequence.kv_len };
    let context = graph.matmul(&weights(&scores), &qkv.value);
    let context = graph.mul(&context, &scores.mask.reads_any);
    Ok(heads::output(layer, qkv, &context)?)
}
