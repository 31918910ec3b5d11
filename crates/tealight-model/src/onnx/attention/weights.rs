//! From a row of scores to a row of weights.

use super::dense::Scores;
use crate::attention::thresholded::Rule;
use crate::onnx_graph::{FORBIDDEN, Type, Value, signed};

/// Scores this far below the largest of their row have no weight under sparsemax or entmax; lower ones are raised
/// to it, so that their sums and squares stay small.
const NO_WEIGHT: f64 = -2.;

pub(super) fn softmax(Scores { graph, matrix: scores, .. }: &Scores<'_>) -> Value {
    graph.softmax(scores, -1)
}

/// Softmax over the `k` largest scores of a row, the first of equal ones.
pub(super) fn top_k(s @ Scores { graph, matrix: scores, .. }: &Scores<'_>, k: usize) -> Value {
    let k = graph.min(&graph.int(signed(k)), s.kv_len);
    let [values, places] = graph.top(scores, &k);
    let nothing = graph.expand(&graph.number(FORBIDDEN), &graph.map("Shape", scores));
    graph.softmax(&graph.scatter_last(&nothing, &places, &values), -1)
}

/// The formulas of [`crate::attention::thresholded`].
pub(super) fn thresholded(
    s @ Scores { graph, matrix: scores, .. }: &Scores<'_>,
    rule: Rule,
    threshold: f64,
) -> Value {
    let (threshold, zero) = (graph.number(threshold), graph.number(0.));
    if rule == Rule::ScoreCut {
        let kept = graph.and(&graph.greater(scores, &threshold), &s.mask.allowed);
        let weights = graph.softmax(&graph.select(&kept, scores, &graph.number(FORBIDDEN)), -1);
        return graph.select(&kept, &weights, &zero);
    }
    let weights = graph.softmax(scores, -1);
    let cut = graph.select(&graph.greater(&weights, &threshold), &weights, &zero);
    match rule {
        Rule::CutRenormalized => graph.div(&cut, &graph.nonzero(&graph.sum(&cut, -1))),
        Rule::Cut | Rule::ScoreCut => cut,
    }
}

/// [z − τ]₊, where τ makes the sum 1 (Martins and Astudillo 2016, algorithm 1).
pub(super) fn sparsemax(s: &Scores<'_>) -> Value {
    let graph = s.graph;
    let Rows { z, sorted, count } = Rows::new(s, 1.);
    let sums = graph.cumulative(&sorted, -1);
    // k counts while 1 + k z₍ₖ₎ > Σ of the k largest.
    let least = graph.add(&graph.mul(&count, &sorted), &graph.number(1.));
    let support = graph.cast(&graph.greater(&least, &sums), Type::Float);
    let n = graph.sum(&support, -1);
    let sum = graph.sum(&graph.mul(&sorted, &support), -1);
    let tau = graph.div(&graph.sub(&sum, &graph.number(1.)), &n);
    graph.map("Relu", &graph.sub(&z, &tau))
}

/// [z/2 − τ]₊², where τ makes the sum 1 (Peters et al. 2019, algorithm 2).
pub(super) fn entmax15(s: &Scores<'_>) -> Value {
    let graph = s.graph;
    let Rows { z, sorted, count } = Rows::new(s, 0.5);
    let mean = graph.div(&graph.cumulative(&sorted, -1), &count);
    let squares = graph.cumulative(&graph.mul(&sorted, &sorted), -1);
    let spread = graph.sub(&squares, &graph.mul(&count, &graph.mul(&mean, &mean)));
    let rest = graph.div(&graph.sub(&graph.number(1.), &spread), &count);
    let root = graph.map("Sqrt", &graph.map("Relu", &rest));
    let taus = graph.sub(&mean, &root); // τ, if the k largest had a weight
    // The τ of the largest k that τ₍ₖ₎ ≤ z₍ₖ₎ allows.
    let allowed = graph.cast(&graph.not(&graph.greater(&taus, &sorted)), Type::Int);
    let last = graph.sub(&graph.sum(&allowed, -1), &graph.int(1));
    let part = graph.map("Relu", &graph.sub(&z, &graph.gather_last(&taus, &last)));
    graph.mul(&part, &part)
}

/// Rows of scores relative to their largest.
struct Rows {
    /// The scores times a factor, minus the largest of the row, and at least [`NO_WEIGHT`].
    z: Value,
    /// The same, the largest first.
    sorted: Value,
    /// 1, 2, … kv_len
    count: Value,
}

impl Rows {
    fn new(Scores { graph, matrix: scores, kv_len, .. }: &Scores<'_>, factor: f64) -> Self {
        let z = graph.sub(scores, &graph.largest(scores, &[-1]));
        let z = graph.max(&graph.scale(&z, factor), &graph.number(NO_WEIGHT));
        let [sorted, _places] = graph.top(&z, kv_len);
        let end = graph.add(kv_len, &graph.int(1));
        let count = graph.cast(&graph.range(&graph.int(1), &end), Type::Float);
        Self { z, sorted, count }
    }
}
