//! From the hidden states of an encoder to the vector of a text.

use candle_core::{Result, bail};

use crate::models::pooling::{
    DenseActivation, DenseMap, LEAST_NORM, Normalize, Pooling, VectorSpec,
};
use crate::onnx_graph::{FORBIDDEN, Graph, Sequence, Value};

/// The mean over the real positions: `x (batch, seq_len, d_model)` → `(batch, 1, d_model)`
pub(super) fn mean(sequence: &Sequence<'_>, x: &Value) -> Value {
    let graph = sequence.graph;
    let real = graph.unsqueeze(&sequence.real_keys(), &[2]); // (batch, seq_len, 1)
    let count = graph.max(&graph.sum(&real, 1), &graph.number(1.));
    graph.div(&graph.sum(&graph.mul(x, &real), 1), &count)
}

/// The first position: `x (batch, seq_len, d_model)` → `(batch, 1, d_model)`
pub(super) fn first(graph: &Graph, x: &Value) -> Value {
    graph.slice(x, 1, [0, 1, 1])
}

/// The largest numbers of the real positions: `x (batch, seq_len, d_model)` → `(batch, 1, d_model)`
fn largest(sequence: &Sequence<'_>, x: &Value) -> Value {
    let graph = sequence.graph;
    let real = graph.unsqueeze(&sequence.real, &[2]); // (batch, seq_len, 1)
    graph.largest(&graph.select(&real, x, &graph.number(FORBIDDEN)), &[1])
}

/// The vectors of the texts: `states (batch, seq_len, d_model)` → `(batch, spec.dim)`
///
/// # Errors
/// If `spec` has no pooling, a map that does not fit what is before it, or a `dim` that is longer than the vector.
pub(super) fn vectors(
    sequence: &Sequence<'_>,
    spec: &VectorSpec,
    d_model: usize,
    states: &Value,
) -> Result<Value> {
    let graph = sequence.graph;
    check(spec, d_model)?;
    let pool = |pooling: &Pooling| match pooling {
        Pooling::Mean => mean(sequence, states),
        Pooling::Cls => first(graph, states),
        Pooling::Max => largest(sequence, states),
    };
    let pooled: Vec<Value> = spec.poolings.iter().map(pool).collect();
    let pooled = graph.concat(&pooled.iter().collect::<Vec<_>>(), 2);
    let mut x = graph.squeeze(&pooled, &[1]);
    for (at, map) in spec.dense.iter().enumerate() {
        x = dense(graph, &format!("dense.{at}"), map, &x)?;
    }
    if spec.normalize == Normalize::Pooled {
        x = unit_length(graph, &x);
    }
    x = graph.slice(&x, 1, [0, i64::try_from(spec.dim).unwrap_or(i64::MAX), 1]);
    Ok(if spec.normalize == Normalize::Returned { unit_length(graph, &x) } else { x })
}

fn check(spec: &VectorSpec, d_model: usize) -> Result<()> {
    let mut width = spec.poolings.len() * d_model;
    for map in &spec.dense {
        let (n_out, n_in) = map.weight.dims2()?;
        if n_in != width {
            bail!("a linear map reads vectors of {n_in} numbers, and they have {width}");
        }
        width = n_out;
    }
    if !(1..=width).contains(&spec.dim) {
        bail!("vectors of {} numbers are asked for, and they have {width}", spec.dim);
    }
    Ok(())
}

/// φ(W x + b): `(batch, n_in)` → `(batch, n_out)`
fn dense(graph: &Graph, name: &str, map: &DenseMap, x: &Value) -> Result<Value> {
    let weight = graph.tensor(&format!("{name}.weight"), &map.weight.t()?.contiguous()?)?;
    let mut y = graph.matmul(x, &weight);
    if let Some(bias) = &map.bias {
        y = graph.add(&y, &graph.tensor(&format!("{name}.bias"), bias)?);
    }
    Ok(match map.activation {
        DenseActivation::Identity => y,
        DenseActivation::Tanh => graph.map("Tanh", &y),
        DenseActivation::Relu => graph.map("Relu", &y),
    })
}

/// x / max(‖x‖₂, 10⁻¹²) along the last axis of `(batch, dim)`.
fn unit_length(graph: &Graph, x: &Value) -> Value {
    let norm = graph.map("Sqrt", &graph.sum(&graph.mul(x, x), 1));
    graph.div(x, &graph.max(&norm, &graph.number(f64::from(LEAST_NORM))))
}
