//! Nyström attention: the formulas of [`tealight_ops::nystrom`], for any length and any padding.

use candle_core::Result;

use super::{Compat, Config};
use crate::attention::onnx::heads::{self, Qkv};
use crate::attention::onnx::{Layer, Output};
use crate::attention::projection::Heads;
use crate::onnx_graph::{Attribute, FORBIDDEN, Graph, OnnxResult, Type, Value, signed};

/// kernel_1 Z kernel_3 V + DConv(V), or exact softmax attention for rows that are short enough.
pub(super) fn attention(layer: &Layer<'_>, x: &Value, config: &Config) -> OnnxResult<Output> {
    // `seq_len` is the length of the inputs.
    let Config { n_landmarks, n_iterations, conv_kernel, compat, seq_len: _ } = *config;
    let (graph, sequence) = (layer.graph(), layer.sequence);
    let mut qkv = heads::project(layer, x, Heads::default())?;
    qkv.query = graph.scale(&qkv.query, 1. / (layer.head_dim as f64).sqrt());
    let segments = Segments::new(layer, n_landmarks, compat);
    let [query_landmarks, key_landmarks, means] =
        [&qkv.query, &qkv.key, &qkv.value].map(|x| graph.matmul(&segments.shares, x));

    let of_landmarks = |query: &Value| {
        let scores = graph.matmul_transposed(query, &key_landmarks);
        let empty = graph.sub(&graph.number(1.), &segments.columns);
        let scores = graph.add(&scores, &graph.scale(&empty, FORBIDDEN));
        graph.mul(&graph.softmax(&scores, -1), &segments.columns)
    };
    let kernel_1 = of_landmarks(&qkv.query);
    let kernel_2 = graph.mul(&of_landmarks(&query_landmarks), &segments.rows);
    let mask = sequence.mask(None);
    let scores = graph.add(&graph.matmul_transposed(&query_landmarks, &qkv.key), &mask.additive);
    let kernel_3 = graph.mul(&graph.softmax(&scores, -1), &segments.rows);
    let kernel_3 = graph.mul(&kernel_3, &mask.reads_any);

    let inverse = pseudo_inverse(graph, &kernel_2, &segments.identity, n_iterations, compat);
    let read = graph.matmul(&inverse, &graph.matmul(&kernel_3, &qkv.value));
    let read = graph.select(&segments.is_exact, &means, &read);
    let mut context = graph.matmul(&kernel_1, &read);
    if let Some(kernel) = conv_kernel {
        context = graph.add(&context, &convolution(layer, &qkv, kernel, compat)?);
    }
    Ok(heads::output(layer, qkv, &context)?)
}

/// The segments whose means are the landmarks.
struct Segments {
    /// In the row of a landmark 1 / (length of its segment) at the positions of the segment, else 0:
    /// `(batch, 1, m, len)`.
    shares: Value,
    /// 1 at landmarks with a position, else 0: `(batch, 1, m, 1)`.
    rows: Value,
    /// The same, `(batch, 1, 1, m)`.
    columns: Value,
    /// Whether each position is its own landmark: `(batch, 1, 1, 1)` of bool.
    is_exact: Value,
    /// `(m, m)`
    identity: Value,
}

impl Segments {
    /// m = min(n_landmarks, len) segments over the positions of each row, the first of which are longer by one.
    fn new(layer: &Layer<'_>, n_landmarks: usize, compat: Compat) -> Self {
        let (graph, sequence) = (layer.graph(), layer.sequence);
        let (len, limit) = (&sequence.kv_len, graph.int(signed(n_landmarks)));
        let m = graph.min(len, &limit);
        let counted = match compat {
            Compat::None => sequence.real.clone(),
            // Padding is left out of short sequences only.
            Compat::HuggingFace | Compat::HuggingFaceExact => {
                graph.or(&sequence.real, &graph.greater(len, &limit))
            }
        };
        let places = graph.cast(&counted, Type::Int); // (batch, len)
        let n = graph.sum(&places, 1); // (batch, 1)
        let place = graph.sub(&graph.cumulative(&places, 1), &graph.int(1));
        let segment = segment_of(graph, &place, &n, &m);

        let landmarks = graph.range(&graph.int(0), &m);
        let column = graph.unsqueeze(&landmarks, &[1]); // (m, 1)
        let is_member = graph.equal(&graph.unsqueeze(&segment, &[1]), &column); // (batch, m, len)
        let is_member = graph.and(&is_member, &graph.unsqueeze(&counted, &[1]));
        let member = graph.unsqueeze(&graph.cast(&is_member, Type::Float), &[1]);
        let size = graph.sum(&member, -1); // (batch, 1, m, 1)
        let rows = graph.min(&size, &graph.number(1.));
        let exact = graph.not(&graph.greater(&n, &m));
        Self {
            shares: graph.div(&member, &graph.max(&size, &graph.number(1.))),
            columns: graph.transpose(&rows, [0, 1, 3, 2]),
            rows,
            is_exact: graph.unsqueeze(&exact, &[2, 3]),
            identity: graph.cast(&graph.equal(&landmarks, &column), Type::Float),
        }
    }
}

/// The segment of each `place` among the `n` counted positions of a row: `(batch, len)`
fn segment_of(graph: &Graph, place: &Value, n: &Value, m: &Value) -> Value {
    let short = graph.div(n, m);
    let n_longer = graph.sub(n, &graph.mul(&short, m));
    let long = graph.add(&short, &graph.int(1));
    let in_longer = graph.mul(&n_longer, &long);
    let beyond = graph.sub(place, &in_longer);
    let of_short = graph.div(&beyond, &graph.max(&short, &graph.int(1)));
    let of_short = graph.add(&n_longer, &of_short);
    graph.select(&graph.less(place, &in_longer), &graph.div(place, &long), &of_short)
}

/// The iteration of eq. (11) for the inverse of `a (.., m, m)`.
fn pseudo_inverse(
    graph: &Graph,
    a: &Value,
    identity: &Value,
    n_iterations: usize,
    compat: Compat,
) -> Value {
    let sums = graph.sum(a, -2); // of columns
    let largest = match compat {
        Compat::HuggingFace => graph.largest(&sums, &[0, 1, 2, 3]),
        Compat::None | Compat::HuggingFaceExact => graph.largest(&sums, &[-1]),
    };
    let less = |factor: f64, x: &Value| graph.sub(&graph.scale(identity, factor), x);
    let mut z = graph.div(&graph.transpose(a, [0, 1, 3, 2]), &graph.nonzero(&largest));
    for _ in 0..n_iterations {
        let x = graph.matmul(a, &z);
        let polynomial = less(15., &graph.matmul(&x, &less(7., &x)));
        let polynomial = less(13., &graph.matmul(&x, &polynomial));
        z = graph.scale(&graph.matmul(&z, &polynomial), 0.25);
    }
    z
}

/// The convolution of the values along the sequence, with a kernel per head.
fn convolution(layer: &Layer<'_>, qkv: &Qkv, kernel: usize, compat: Compat) -> Result<Value> {
    let graph = layer.graph();
    let weight = layer.at.at("conv").constant(graph, "weight")?; // (n_heads, 1, kernel, 1)
    let value = match compat {
        Compat::None => {
            let real = graph.unsqueeze(&layer.sequence.real_keys(), &[1, 3]);
            graph.mul(&qkv.value, &real)
        }
        Compat::HuggingFace | Compat::HuggingFaceExact => qkv.value.clone(),
    };
    let reach = signed(kernel) / 2;
    let settings = vec![
        ("group", Attribute::Int(signed(layer.n_heads))),
        ("kernel_shape", Attribute::Ints(vec![signed(kernel), 1])),
        ("pads", Attribute::Ints(vec![reach, 0, reach, 0])),
    ];
    Ok(graph.node("Conv", &[&value, &weight], settings))
}
