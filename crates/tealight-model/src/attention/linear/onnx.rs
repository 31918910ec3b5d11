//! Linear attention with any positive features, given by their logarithms: elu(x) + 1, or random features.
//!
//! Without causality the sums over keys are computed once, in linear time. With it each pair of positions gets a
//! weight: the features are multiplied relative to the largest of each position, so that none overflows, and the
//! logarithms of the products are the scores of a softmax.

use crate::attention::onnx::heads::{self, Qkv};
use crate::attention::onnx::{Layer, Output};
use crate::onnx_graph::{FORBIDDEN, Graph, OnnxResult, Value};

/// Products of features are raised to this, the smallest normal number of f32, before their logarithm.
const SMALLEST: f64 = f32::MIN_POSITIVE as f64;

/// Σⱼ φ(q)ᵀφ(kⱼ) vⱼ / Σⱼ φ(q)ᵀφ(kⱼ), for ln φ of queries and keys, `(batch, n_heads, len, n_features)` each.
pub(in crate::attention) fn average(
    layer: &Layer<'_>,
    qkv: Qkv,
    logs: &[Value; 2],
) -> OnnxResult<Option<Output>> {
    let (graph, sequence) = (layer.graph(), layer.sequence);
    let mask = sequence.mask(None);
    let context = if sequence.causal {
        graph
            .matmul(&graph.softmax(&graph.add(&pairs(graph, logs), &mask.additive), -1), &qkv.value)
    } else {
        read_sums(layer, logs, &qkv.value)
    };
    let context = graph.mul(&context, &mask.reads_any);
    Ok(Some(heads::output(layer, qkv, &context)?))
}

/// ln φ(q)ᵀφ(k), up to a constant for each query: `(batch, n_heads, q_len, kv_len)`
fn pairs(graph: &Graph, [log_query, log_key]: &[Value; 2]) -> Value {
    let largest = graph.largest(log_key, &[-1]);
    let key = graph.exp(&graph.sub(log_key, &largest));
    let query = graph.exp(&graph.sub(log_query, &graph.largest(log_query, &[-1])));
    let products = graph.max(&graph.matmul_transposed(&query, &key), &graph.number(SMALLEST));
    graph.add(&graph.map("Log", &products), &graph.transpose(&largest, [0, 1, 3, 2]))
}

/// The average with the sums over all keys, relative to the largest logarithm of each feature.
fn read_sums(layer: &Layer<'_>, [log_query, log_key]: &[Value; 2], value: &Value) -> Value {
    let (graph, sequence) = (layer.graph(), layer.sequence);
    let real = graph.unsqueeze(&sequence.real, &[1, 3]); // (batch, 1, kv_len, 1)
    let log_key = graph.select(&real, log_key, &graph.number(FORBIDDEN));
    let largest = graph.largest(&log_key, &[2]); // (batch, n_heads, 1, n_features)
    let key = graph.exp(&graph.sub(&log_key, &largest));
    let sums = graph.matmul(&graph.transpose(&key, [0, 1, 3, 2]), value);
    let total = graph.transpose(&graph.sum(&key, 2), [0, 1, 3, 2]); // (batch, n_heads, n_features, 1)
    let logs = graph.add(log_query, &largest);
    let query = graph.exp(&graph.sub(&logs, &graph.largest(&logs, &[-1])));
    graph.div(&graph.matmul(&query, &sums), &graph.matmul(&query, &total))
}
