//! Means that fade with the distance, position by position: those of RWKV and of causal AFT-simple.
//!
//! ```text
//!         Σ_{i<t} e^(−(t−1−i) w + kᵢ) ⊙ vᵢ + e^(u + k_t) ⊙ v_t
//! y_t  =  ────────────────────────────────────────────────────         w = u = 0 in AFT-simple
//!         Σ_{i<t} e^(−(t−1−i) w + kᵢ)      + e^(u + k_t)
//! ```
//!
//! The state is numerator, denominator and the largest exponent, relative to which no exponential overflows.

use super::Layer;
use crate::onnx_graph::{FORBIDDEN, Graph, Sequence, Value};

/// Keys and values `(batch, len, width)`, and w and u `(width)`; 0 if absent.
pub(crate) struct Recurrence<'a> {
    pub(crate) key: &'a Value,
    pub(crate) value: &'a Value,
    pub(crate) decay: Option<&'a Value>,
    pub(crate) bonus: Option<&'a Value>,
}

/// The largest exponent, numerator and denominator, `(batch, width)` each.
type State = [Value; 3];

/// y `(batch, len, width)`; zeros where nothing is read. Padding adds nothing, and nothing fades there.
pub(crate) fn fading_mean(sequence: &Sequence<'_>, recurrence: &Recurrence<'_>) -> Value {
    let graph = sequence.graph;
    let Recurrence { key, value, decay, bonus } = *recurrence;
    let real = graph.unsqueeze(&sequence.real_keys(), &[2]); // (batch, len, 1)
    let is_real = graph.unsqueeze(&sequence.real, &[2]);
    let key = graph.select(&is_real, key, &graph.number(FORBIDDEN));
    let zero = graph.scale(&graph.squeeze(&graph.slice(value, 1, [0, 1, 1]), &[1]), 0.);
    let lowest = graph.add(&zero, &graph.number(FORBIDDEN));
    let states = [&lowest, &zero, &zero];
    graph.scan(states, [&key, value, &real], |past, [key, value, real]| {
        let shifted = |x: &Value, by: Option<&Value>| by.map_or(x.clone(), |by| graph.add(x, by));
        let new = |key| [key, graph.mul(&value, &real), real.clone()];
        let [_largest, numerator, denominator] = merged(graph, &past, &new(shifted(&key, bonus)));
        let y = graph.div(&numerator, &graph.nonzero(&denominator));
        let [largest, numerator, denominator] = past;
        let fade = |decay| graph.sub(&largest, &graph.mul(decay, &real));
        let largest = decay.map_or(largest.clone(), fade);
        (merged(graph, &[largest, numerator, denominator], &new(key)), y)
    })
}

/// x_{t−1} of `x (batch, len, width)`: the token before each position, padding skipped; the first token has zeros.
pub(crate) fn previous_tokens(layer: &Layer<'_>, x: &Value) -> Value {
    let (graph, sequence) = (layer.graph(), layer.sequence);
    let real = graph.unsqueeze(&sequence.real_keys(), &[2]);
    let zero = graph.scale(&graph.squeeze(&graph.slice(x, 1, [0, 1, 1]), &[1]), 0.);
    graph.scan([&zero], [x, &real], |[last], [x, real]| {
        let change = graph.mul(&graph.sub(&x, &last), &real);
        ([graph.add(&last, &change)], last)
    })
}

/// The sums of both.
fn merged(graph: &Graph, a: &State, b: &State) -> State {
    let largest = graph.max(&a[0], &b[0]);
    let [of_a, of_b] = [a, b].map(|x| graph.exp(&graph.sub(&x[0], &largest)));
    let sum = |i: usize| graph.add(&graph.mul(&a[i], &of_a), &graph.mul(&b[i], &of_b));
    [largest, sum(1), sum(2)]
}
