//! The parts that the kinds of AFT share: gated means whose weights do not depend on the query.

use super::{Layer, Output, convolution};
use crate::onnx_graph::{FORBIDDEN, OnnxResult, Type, Value, signed};

/// The tap of a filter that query i has for key j, and 1 where it has one, else 0: `(q_len, kv_len)` each.
pub(crate) struct Taps {
    pub(crate) tap: Value,
    pub(crate) inside: Value,
}

impl Taps {
    /// `origin` is the tap of the position itself.
    pub(crate) fn new(layer: &Layer<'_>, n_taps: usize, origin: usize) -> Self {
        let (graph, sequence) = (layer.graph(), layer.sequence);
        let place = graph.add(&sequence.distances(), &graph.int(signed(origin)));
        let tap = graph.max(&place, &graph.int(0));
        let tap = graph.min(&tap, &graph.int(signed(n_taps) - 1));
        Self { inside: graph.cast(&graph.equal(&tap, &place), Type::Float), tap }
    }
}

/// Σ_j exp(K_j + w_ij) ⊙ V_j / Σ_j exp(K_j + w_ij), gated, for `biases (q_len, kv_len)`.
///
/// Each step of the scan is the softmax of one query: together they would take (batch, d_model, q_len, kv_len)
/// numbers.
pub(crate) fn of_pairs(layer: &Layer<'_>, x: &Value, biases: &Value) -> OnnxResult<Option<Output>> {
    let (graph, sequence) = (layer.graph(), layer.sequence);
    let Maps { query, key, value } = Maps::project(layer, x)?;
    let key = without_padding(layer, &key);
    let mut biases = biases.clone();
    if sequence.causal {
        let future = graph.greater(&sequence.distances(), &graph.int(0));
        biases = graph.select(&future, &graph.number(FORBIDDEN), &biases);
    }
    let rows = graph.unsqueeze(&biases, &[0]); // (1, q_len, kv_len)
    let means = graph.scan([], [&rows], |[], [row]| {
        let scores = graph.add(&key, &graph.unsqueeze(&row, &[2])); // (batch, kv_len, d_model)
        let mean = graph.sum(&graph.mul(&graph.softmax(&scores, 1), &value), 1);
        ([], graph.squeeze(&mean, &[1]))
    });
    gated(layer, &query, &graph.mul(&means, &reads_any(layer)))
}

/// The maps of the stream: queries and values `(batch, len, d_model)`, keys as wide as their parameters.
pub(crate) struct Maps {
    pub(crate) query: Value,
    pub(crate) key: Value,
    pub(crate) value: Value,
}

impl Maps {
    pub(crate) fn project(layer: &Layer<'_>, x: &Value) -> OnnxResult<Self> {
        let map = |name| {
            let y = layer.graph().linear(&layer.at.at(name), x)?;
            convolution::activated(layer, name, y)
        };
        Ok(Self { query: map("query")?, key: map("key")?, value: map("value")? })
    }
}

/// Keys `(batch, kv_len, width)`, far below all others at padding.
pub(crate) fn without_padding(layer: &Layer<'_>, key: &Value) -> Value {
    let graph = layer.graph();
    graph.select(&graph.unsqueeze(&layer.sequence.real, &[2]), key, &graph.number(FORBIDDEN))
}

/// 1 where a query may read any key, else 0: `(batch, q_len or 1, 1)`.
pub(crate) fn reads_any(layer: &Layer<'_>) -> Value {
    layer.graph().squeeze(&layer.sequence.mask(None).reads_any, &[1])
}

/// (σ(Q) ⊙ context) W^O
pub(crate) fn gated(
    layer: &Layer<'_>,
    query: &Value,
    context: &Value,
) -> OnnxResult<Option<Output>> {
    let graph = layer.graph();
    let gated = graph.mul(&graph.map("Sigmoid", query), context);
    Ok(Some(Output { y: graph.linear(&layer.at.at("output"), &gated)?, present: None }))
}
