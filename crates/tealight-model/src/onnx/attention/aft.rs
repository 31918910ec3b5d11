//! The kinds of AFT: gated means whose weights do not depend on the query.

use candle_core::Result;

use super::heads;
use super::layer::{Layer, Output};
use super::recurrence::{Recurrence, fading_mean};
use crate::attention::{aft_conv, aft_full};
use crate::onnx_graph::{FORBIDDEN, Graph, OnnxResult, Type, Value, signed};

/// σ(Q) ⊙ the mean of V with weights exp(K): one softmax for all positions, or the mean of all so far.
pub(super) fn simple(layer: &Layer<'_>, x: &Value) -> OnnxResult<Output> {
    layer.refuse_cache("aft_simple")?;
    let (graph, sequence) = (layer.graph(), layer.sequence);
    let Maps { query, key, value } = Maps::project(layer, x)?;
    let context = if sequence.causal {
        let recurrence = Recurrence { key: &key, value: &value, decay: None, bonus: None };
        fading_mean(sequence, &recurrence)
    } else {
        let weights = graph.softmax(&without_padding(layer, &key), 1);
        let mean = graph.sum(&graph.mul(&weights, &value), 1); // (batch, 1, d_model)
        graph.mul(&mean, &reads_any(layer))
    };
    gated(layer, &query, &context)
}

/// With a learnt bias for every pair of positions.
pub(super) fn full(layer: &Layer<'_>, x: &Value, config: &aft_full::Config) -> OnnxResult<Output> {
    layer.refuse_cache("aft_full")?;
    let (graph, sequence, at) = (layer.graph(), layer.sequence, &layer.at);
    let rows = |name, positions| -> Result<Value> {
        Ok(graph.gather(&at.constant(graph, name)?, positions, 0))
    };
    // The rank is that of the parameters.
    let aft_full::Config { factorised, rank: _ } = *config;
    let biases = if factorised {
        let v = rows("v", &sequence.keys)?;
        graph.matmul(&rows("u", &sequence.queries)?, &graph.transpose(&v, [1, 0]))
    } else {
        graph.gather(&rows("w", &sequence.queries)?, &sequence.keys, 1)
    };
    of_pairs(layer, x, &biases)
}

/// With learnt biases in a window.
pub(super) fn local(layer: &Layer<'_>, x: &Value) -> OnnxResult<Output> {
    layer.refuse_cache("aft_local")?;
    let (graph, sequence) = (layer.graph(), layer.sequence);
    let (_max_seq_len, n_taps) = layer.at.tensor("w")?.dims2()?;
    let band = graph.gather(&layer.at.constant(graph, "w")?, &sequence.queries, 0);
    let Taps { tap, inside } = Taps::new(layer, n_taps, n_taps / 2);
    of_pairs(layer, x, &graph.mul(&graph.gather_last(&band, &tap), &inside))
}

/// With a learnt filter for each head.
pub(super) fn conv(layer: &Layer<'_>, x: &Value, config: &aft_conv::Config) -> OnnxResult<Output> {
    layer.refuse_cache("aft_conv")?;
    let (graph, sequence, at) = (layer.graph(), layer.sequence, &layer.at);
    let aft_conv::Config { kernel_size, alignment } = *config;
    let filter = [at.tensor("w")?, at.tensor("gamma")?, at.tensor("beta")?];
    let filter = aft_conv::reparametrised(filter[0], filter[1], filter[2])?;
    let filter = at.derived(graph, "filter", &filter)?; // (n_heads, kernel_size)
    let origin = match alignment {
        aft_conv::Alignment::Centred => kernel_size / 2,
        aft_conv::Alignment::Left => kernel_size - 1,
    };
    let Taps { tap, inside } = Taps::new(layer, kernel_size, origin);
    let biases = graph.mul(&graph.gather(&filter, &tap, 1), &inside); // (n_heads, q_len, kv_len)

    let Maps { query, key, value } = Maps::project(layer, x)?;
    let key = graph.unsqueeze(&graph.transpose(&key, [0, 2, 1]), &[2]); // (batch, n_heads, 1, kv_len)
    let mask = sequence.mask(None);
    let scores = graph.add(&graph.add(&key, &biases), &mask.additive);
    let value = heads::split(layer, &value, layer.n_heads);
    let context = graph.matmul(&graph.softmax(&scores, -1), &value);
    let context = heads::merge(graph, &graph.mul(&context, &mask.reads_any));
    gated(layer, &query, &context)
}

/// The tap of a filter that query i has for key j, and 1 where it has one, else 0: `(q_len, kv_len)` each.
struct Taps {
    tap: Value,
    inside: Value,
}

impl Taps {
    /// `origin` is the tap of the position itself.
    fn new(layer: &Layer<'_>, n_taps: usize, origin: usize) -> Self {
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
fn of_pairs(layer: &Layer<'_>, x: &Value, biases: &Value) -> OnnxResult<Output> {
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
struct Maps {
    query: Value,
    key: Value,
    value: Value,
}

impl Maps {
    fn project(layer: &Layer<'_>, x: &Value) -> Result<Self> {
        let map = |name| layer.graph().linear(&layer.at.at(name), x);
        Ok(Self { query: map("query")?, key: map("key")?, value: map("value")? })
    }
}

/// Keys `(batch, kv_len, width)`, far below all others at padding.
fn without_padding(layer: &Layer<'_>, key: &Value) -> Value {
    let graph = layer.graph();
    graph.select(&graph.unsqueeze(&layer.sequence.real, &[2]), key, &graph.number(FORBIDDEN))
}

/// 1 where a query may read any key, else 0: `(batch, q_len or 1, 1)`.
fn reads_any(layer: &Layer<'_>) -> Value {
    layer.graph().squeeze(&layer.sequence.mask(None).reads_any, &[1])
}

/// (σ(Q) ⊙ context) W^O
fn gated(layer: &Layer<'_>, query: &Value, context: &Value) -> OnnxResult<Output> {
    let graph: &Graph = layer.graph();
    let gated = graph.mul(&graph.map("Sigmoid", query), context);
    Ok(Output { y: graph.linear(&layer.at.at("output"), &gated)?, present: None })
}
