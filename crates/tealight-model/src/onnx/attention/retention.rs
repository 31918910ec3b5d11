//! Multi-scale retention, in its parallel form.

use candle_core::{DType, Device, Tensor};

use super::heads;
use super::layer::{Layer, Output};
use crate::attention::projection::Heads;
use crate::attention::retention;
use crate::onnx_graph::{OnnxResult, Type, Value};

/// (swish(X W_G) ⊙ GroupNorm((Q Kᵀ ⊙ D) V)) W_O
pub(super) fn attention(layer: &Layer<'_>, x: &Value) -> OnnxResult<Output> {
    let (graph, sequence, at) = (layer.graph(), layer.sequence, &layer.at);
    let qkv = heads::project(layer, x, Heads::default())?;
    let scale = 1. / (layer.head_dim as f64).sqrt();
    let scores = graph.matmul_transposed(&graph.scale(&qkv.query, scale), &qkv.key);
    let logs: Vec<f64> = retention::gamma(layer.n_heads).iter().map(|gamma| gamma.ln()).collect();
    let logs = Tensor::new(logs, &Device::Cpu)?.reshape((layer.n_heads, 1, 1))?;
    let logs = at.derived(graph, "gamma.ln", &logs)?;
    // γ^(n−m); the future is masked.
    let past = graph.max(&graph.map("Neg", &sequence.distances()), &graph.int(0));
    let decay = graph.exp(&graph.mul(&logs, &graph.cast(&past, Type::Float)));
    let weights = graph.mul(&scores, &decay);
    let weights = graph.select(&sequence.mask(None).allowed, &weights, &graph.number(0.));
    let context = graph.matmul(&weights, &qkv.value);
    let ones = Tensor::ones(layer.head_dim, DType::F32, &Device::Cpu)?;
    let ones = at.derived(graph, "ones", &ones)?;
    let context = graph.layer_norm(&context, &ones, None, retention::EPSILON);
    let gate = graph.linear(&at.at("gate"), x)?;
    let gate = graph.mul(&gate, &graph.map("Sigmoid", &gate));
    let gated = graph.mul(&gate, &heads::merge(graph, &context));
    let y = graph.linear(&at.at("output"), &gated)?;
    Ok(Output { y, present: qkv.present })
}
