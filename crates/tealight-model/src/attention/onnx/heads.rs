//! Queries, keys and values in heads, and back into the residual stream.

use candle_core::Result;

use super::{Layer, Output, convolution};
use crate::attention::projection::Heads;
use crate::attention::qk_norm::NormOver;
use crate::onnx_graph::{Graph, OnnxResult, Value, signed};

/// Queries `(batch, n_heads, q_len, head_dim)`, and keys and values `(batch, n_heads, kv_len, head_dim)`.
#[derive(Debug)]
pub(crate) struct Qkv {
    pub(crate) query: Value,
    pub(crate) key: Value,
    pub(crate) value: Value,
    /// Keys and values before heads are repeated, if there is a cache.
    pub(crate) present: Option<[Value; 2]>,
}

/// Projects `x (batch, q_len, d_model)`; queries and keys are rotated, if positions are rotary.
pub(crate) fn project(layer: &Layer<'_>, x: &Value, heads: Heads) -> OnnxResult<Qkv> {
    let (graph, n_heads) = (layer.graph(), layer.n_heads);
    let n_kv_heads = heads.n_kv_heads.unwrap_or(n_heads);
    let map = |name| convolution::activated(layer, name, graph.linear(&layer.at.at(name), x)?);
    let normed = |name, over: NormOver, x: Value| {
        let Some(norm) = heads.qk_norm.filter(|norm| norm.over == over) else {
            return Result::Ok(x);
        };
        let gain = layer.at.at(format!("{name}_norm")).constant(graph, "weight")?;
        Ok(graph.rms_norm(&x, &gain, norm.epsilon))
    };
    let of = |name, n| {
        let whole = normed(name, NormOver::AllHeads, map(name)?)?;
        OnnxResult::Ok(normed(name, NormOver::Head, split(layer, &whole, n))?)
    };
    let rotated = |x: Value| match layer.angles {
        Some(angles) => angles.rotate(layer.sequence, &x, layer.head_dim),
        None => x,
    };
    let query = rotated(of("query", n_heads)?);
    let mut key = rotated(of("key", n_kv_heads)?);
    let mut value = split(layer, &map("value")?, n_kv_heads);
    if let Some([past_key, past_value]) = &layer.past {
        key = graph.concat(&[past_key, &key], 2);
        value = graph.concat(&[past_value, &value], 2);
    }
    let present = layer.past.is_some().then(|| [key.clone(), value.clone()]);
    let [key, value] = [key, value].map(|x| repeat(layer, &x, n_kv_heads));
    Ok(Qkv { query, key, value, present })
}

/// `(batch, len, n_heads·head_dim)` → `(batch, n_heads, len, head_dim)`
pub(crate) fn split(layer: &Layer<'_>, x: &Value, n_heads: usize) -> Value {
    let graph = layer.graph();
    let heads = graph.reshape(x, &[0, 0, signed(n_heads), signed(layer.head_dim)]);
    graph.transpose(&heads, [0, 2, 1, 3])
}

/// `(batch, n_heads, len, head_dim)` → `(batch, len, n_heads·head_dim)`
pub(crate) fn merge(graph: &Graph, x: &Value) -> Value {
    graph.reshape(&graph.transpose(x, [0, 2, 1, 3]), &[0, 0, -1])
}

/// `(batch, n_kv_heads, len, head_dim)` → `(batch, n_heads, len, head_dim)`: each head of keys or values for all
/// heads of queries that share it.
fn repeat(layer: &Layer<'_>, x: &Value, n_kv_heads: usize) -> Value {
    let (graph, n_heads) = (layer.graph(), layer.n_heads);
    if n_kv_heads == n_heads {
        return x.clone();
    }
    let group = graph.ints(&[1, 1, signed(n_heads / n_kv_heads), 1, 1]);
    let repeated = graph.expand(&graph.unsqueeze(x, &[2]), &group);
    graph.reshape(&repeated, &[0, signed(n_heads), -1, signed(layer.head_dim)])
}

/// The output of a layer whose heads give `context (batch, n_heads, q_len, head_dim)`.
pub(crate) fn output(layer: &Layer<'_>, qkv: Qkv, context: &Value) -> Result<Output> {
    let graph = layer.graph();
    let y = graph.linear(&layer.at.at("output"), &merge(graph, context))?;
    Ok(Output { y, present: qkv.present })
}
