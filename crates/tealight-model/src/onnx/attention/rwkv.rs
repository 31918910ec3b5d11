//! The time mixing of RWKV-4.

use candle_core::Result;

use super::layer::{Layer, Output};
use super::recurrence::{Recurrence, fading_mean};
use crate::onnx_graph::{OnnxResult, Value};

/// W_o (σ(r) ⊙ wkv).
pub(super) fn attention(layer: &Layer<'_>, x: &Value) -> OnnxResult<Output> {
    layer.refuse_cache("rwkv")?;
    let (graph, sequence, at) = (layer.graph(), layer.sequence, &layer.at);
    // x_{t−1}, zero where it is padding or before the first position
    let real = graph.unsqueeze(&sequence.real_keys(), &[2]);
    let kept = graph.slice(&graph.mul(x, &real), 1, [0, -1, 1]);
    let first = graph.scale(&graph.slice(x, 1, [0, 1, 1]), 0.);
    let previous = graph.concat(&[&first, &kept], 1);
    let shift = |name: &str| -> Result<Value> {
        let at = at.at(name);
        let change = graph.mul(&graph.sub(x, &previous), &at.constant(graph, "mix")?);
        graph.linear(&at, &graph.add(&change, &previous))
    };
    let (key, value) = (shift("key")?, shift("value")?);
    let decay = at.derived(graph, "decay.exp", &at.tensor("decay")?.exp()?)?;
    let bonus = at.constant(graph, "bonus")?;
    let recurrence =
        Recurrence { key: &key, value: &value, decay: Some(&decay), bonus: Some(&bonus) };
    let context = fading_mean(sequence, &recurrence);
    let gated = graph.mul(&graph.map("Sigmoid", &shift("receptance")?), &context);
    Ok(Output { y: graph.linear(&at.at("output"), &gated)?, present: None })
}
