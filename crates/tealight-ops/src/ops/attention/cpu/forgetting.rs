//! The decay between keys and queries.

use std::ops::Range;

use super::tile::Queries;
use crate::backend::element::Element;
use crate::ops::attention::problem::Problem;

/// Partial sums over queries: as many as the widest vectors have lanes.
const LANES: usize = 16;

/// c, the cumulative sum of log f without padding, `(batch, n_heads, kv_len)`: each as a number and its rounding error.
pub(super) struct Forgetting<T> {
    high: Vec<T>,
    low: Vec<T>,
    n_heads: usize,
    kv_len: usize,
    /// The position of the first query among the keys.
    first_query: usize,
}

impl<T: Element> Forgetting<T> {
    /// From `log_forget (batch, n_heads, kv_len)`.
    pub(super) fn new(problem: &Problem, log_forget: &[T], padding: Option<&[u8]>) -> Self {
        let &Problem { n_heads, q_len, kv_len, .. } = problem;
        let (mut high, mut low) = (Vec::new(), Vec::new());
        for (i, row) in log_forget.chunks_exact(kv_len).enumerate() {
            let mut c = 0_f64;
            for (at, &x) in row.iter().enumerate() {
                c += if is_padding(padding, i / n_heads * kv_len + at) { 0. } else { x.widen() };
                let rounded = T::from_f64(c);
                high.push(rounded);
                low.push(T::from_f64(c - rounded.widen()));
            }
        }
        Self { high, low, n_heads, kv_len, first_query: kv_len - q_len }
    }

    /// Adds c_i − c_j to the scores `(keys, n_queries)` of a tile.
    #[inline(always)]
    pub(super) fn add_to(
        &self,
        scores: &mut [T],
        n_queries: usize,
        queries: &Queries,
        keys: Range<usize>,
    ) {
        let first = (queries.batch * self.n_heads + queries.head) * self.kv_len;
        let at = first + self.first_query + queries.rows.start;
        let [of_high, of_low] = [&self.high, &self.low].map(|c| &c[at..][..queries.rows.len()]);
        for (scores, key) in scores.chunks_exact_mut(n_queries).zip(keys) {
            let (high, low) = (self.high[first + key], self.low[first + key]);
            for ((score, &of_high), &of_low) in scores.iter_mut().zip(of_high).zip(of_low) {
                *score += (of_high - high) + (of_low - low);
            }
        }
    }

    /// Adds to dc of one head, `(kv_len)`, the sums of a tile of dS `(keys, n_queries)` over keys, and subtracts those
    /// over queries.
    #[inline(always)]
    pub(super) fn add_gradient(
        &self,
        dc: &mut [T],
        dscores: &[T],
        n_queries: usize,
        queries: &Queries,
        keys: Range<usize>,
    ) {
        let (of_queries, n_rows) = (self.first_query + queries.rows.start, queries.rows.len());
        for (dscores, key) in dscores.chunks_exact(n_queries).zip(keys) {
            let dscores = &dscores[..n_rows]; // idle lanes may hold anything
            let mut sums = [T::ZERO; LANES];
            for lanes in dscores.chunks(LANES) {
                for (sum, &x) in sums.iter_mut().zip(lanes) {
                    *sum += x;
                }
            }
            let mut sum = T::ZERO;
            for x in sums {
                sum += x;
            }
            dc[key] -= sum;
            for (dc, &x) in dc[of_queries..][..n_rows].iter_mut().zip(dscores) {
                *dc += x;
            }
        }
    }
}

/// d log f_t = Σ_{i ≥ t} dc_i, `(batch, n_heads, kv_len)`; 0 at padding.
pub(super) fn gradient_of_gates<T: Element>(
    problem: &Problem,
    dc: Vec<T>,
    padding: Option<&[u8]>,
) -> Vec<T> {
    let &Problem { n_heads, kv_len, .. } = problem;
    let mut gradient = dc;
    for (i, row) in gradient.chunks_exact_mut(kv_len).enumerate() {
        let mut sum = 0_f64;
        for (at, x) in row.iter_mut().enumerate().rev() {
            sum += x.widen();
            let padded = is_padding(padding, i / n_heads * kv_len + at);
            *x = if padded { T::ZERO } else { T::from_f64(sum) };
        }
    }
    gradient
}

fn is_padding(padding: Option<&[u8]>, at: usize) -> bool {
    padding.is_some_and(|padding| padding[at] != 0)
}
