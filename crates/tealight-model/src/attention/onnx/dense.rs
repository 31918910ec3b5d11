//! Attention with a matrix of weights: softmax and its relatives, over all keys or a window.

use super::{Layer, Output, heads, score};
use crate::attention::output_gate::OutputGate;
use crate::attention::parts::Parts;
use crate::attention::sink::Sink;
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

/// Masked P V with its gate and W^O, where `weights` gives P of the scores: zero where forbidden, and anything in a row
/// that may read nothing.
/// `None` if it gives `None`.
pub(crate) fn attention(
    layer: &Layer<'_>,
    x: &Value,
    parts: Parts,
    weights: impl FnOnce(&Scores<'_>) -> Option<Value>,
) -> OnnxResult<Option<Output>> {
    let (graph, sequence) = (layer.graph(), layer.sequence);
    let qkv = heads::project(layer, x, parts.heads)?;
    let mut scores = score::scores(layer, parts.score, &qkv)?;
    if let Some(bias) = layer.score_bias {
        scores = graph.add(&scores, bias);
    }
    let mask = sequence.mask(parts.window);
    let matrix = graph.add(&scores, &mask.additive);
    let scores = Scores { graph, matrix, mask, kv_len: &sequence.kv_len };
    let Some(weights) = weights(&scores) else { return Ok(None) };
    let context = graph.matmul(&weights, &qkv.value);
    let context = graph.mul(&context, &scores.mask.reads_any);
    let context = match parts.output_gate {
        OutputGate::None => context,
        OutputGate::Elementwise => {
            let gates = graph.linear(&layer.at.at("gate"), x)?;
            graph.mul(&graph.map("Sigmoid", &heads::split(layer, &gates, layer.n_heads)), &context)
        }
        OutputGate::Headwise => {
            let gates = graph.linear(&layer.at.at("gate"), x)?; // (batch, q_len, n_heads)
            let gates = graph.transpose(&graph.unsqueeze(&gates, &[3]), [0, 2, 1, 3]);
            graph.mul(&graph.map("Sigmoid", &gates), &context)
        }
    };
    Ok(Some(heads::output(layer, qkv, &context)?))
}

/// The same with softmax.
pub(crate) fn softmax(layer: &Layer<'_>, x: &Value, parts: Parts) -> OnnxResult<Option<Output>> {
    let graph = layer.graph();
    let sink = match parts.sink {
        Sink::None => None,
        Sink::Learnt => Some(layer.at.constant(graph, "sink")?),
        Sink::One => Some(graph.number(0.)),
    };
    let weights = |scores: &Scores<'_>| {
        let Some(sink) = &sink else { return Some(graph.softmax(&scores.matrix, -1)) };
        // (n_heads, 1, 1), or a number.
        let sink =
            if parts.sink == Sink::Learnt { graph.unsqueeze(sink, &[1, 2]) } else { sink.clone() };
        let largest = graph.max(&graph.largest(&scores.matrix, &[-1]), &sink);
        let exponentials = graph.exp(&graph.sub(&scores.matrix, &largest));
        let sum = graph.sum(&exponentials, -1);
        let sum = graph.add(&sum, &graph.exp(&graph.sub(&sink, &largest)));
        Some(graph.div(&exponentials, &sum))
    };
    attention(layer, x, parts, weights)
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
