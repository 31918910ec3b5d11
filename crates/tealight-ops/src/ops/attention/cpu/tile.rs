//! A tile: the scores of some queries of one head for some keys. The queries are the lanes of vectors.
//!
//! Scores are stored as `(keys, queries)`, so that the maximum, the exponential and the sum over keys are
//! operations on whole vectors, and keys and values are read in their own order.

use std::ops::Range;

use pulp::Simd;

use super::Operands;
use super::product::{Right, RowMajor, Start, product};
use crate::backend::matrix::Matrix;
use crate::backend::simd::vector::{Lanes, vectors, vectors_mut};
use crate::ops::attention::problem::Problem;
use crate::ops::dropout::Dropout;

/// The largest number of keys of a tile.
pub(super) const KEYS: usize = 64;

/// The largest number of queries of a tile.
const QUERIES: usize = 64;

/// The elements of the widest vectors. Tiles consist of whole vectors.
const WIDEST: usize = 16;

/// The lanes of a tile of queries, including idle lanes at the end.
pub(super) fn n_queries(q_len: usize) -> usize {
    q_len.next_multiple_of(WIDEST).min(QUERIES)
}

/// `width` rounded up to whole vectors.
pub(super) fn padded(width: usize) -> usize {
    width.next_multiple_of(WIDEST)
}

/// Some queries of one head.
#[derive(Clone, Debug)]
pub(super) struct Queries {
    pub(super) batch: usize,
    pub(super) head: usize,
    pub(super) rows: Range<usize>,
}

/// `columns (width, n_queries)` of `rows (len, width)`, times `scale`. Idle lanes repeat the last row.
#[inline(always)]
pub(super) fn transpose<T: Lanes>(columns: &mut [T], from: Matrix<'_, T>, at: &Queries, scale: T) {
    const ROWS: usize = 8;
    let n_queries = columns.len() / from.columns().max(1);
    let mut first = 0;
    while first < n_queries {
        let mut rows = [from.row(at.rows.end - 1); ROWS];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = from.row((at.rows.start + first + r).min(at.rows.end - 1));
        }
        for d in 0..from.columns() {
            let column = &mut columns[d * n_queries + first..][..ROWS];
            for r in 0..ROWS {
                column[r] = rows[r][d] * scale;
            }
        }
        first += ROWS;
    }
}

/// Copies rows into `padded` rows, times `scale`. Elements past the width are not changed.
#[inline(always)]
pub(super) fn pack<T: Lanes>(to: &mut [T], from: Matrix<'_, T>, rows: Range<usize>, scale: T) {
    let width = padded(from.columns());
    for (to, row) in to.chunks_exact_mut(width).zip(rows) {
        for (to, &x) in to.iter_mut().zip(from.row(row)) {
            *to = x * scale;
        }
    }
}

/// `scores (keys, n_queries)`: k·q, the bias, and −∞ for pairs that are masked.
#[inline(always)]
pub(super) fn scores<S: Simd, T: Lanes>(
    simd: S,
    problem: &Problem,
    operands: &Operands<'_, T>,
    at: &Queries,
    keys: &Range<usize>,
    queries: &[T],
    scores: &mut [T],
) {
    let n_queries = queries.len() / problem.head_dim;
    let key = operands.key.matrix(at.batch, at.head / problem.group());
    dots(simd, key, keys, queries, scores);
    if let Some(bias) = &operands.bias {
        for (lane, row) in at.rows.clone().enumerate() {
            let bias = &bias.row(at.head, row)[keys.clone()];
            for (scores, &bias) in scores.chunks_exact_mut(n_queries).zip(bias) {
                scores[lane] += bias;
            }
        }
    }
    if !problem.band.is_unmasked(&at.rows, keys) {
        for (scores, key) in scores.chunks_exact_mut(n_queries).zip(keys.clone()) {
            let open = problem.band.queries(key);
            let from = open.start.clamp(at.rows.start, at.rows.end) - at.rows.start;
            let to = open.end.clamp(at.rows.start, at.rows.end) - at.rows.start;
            scores[..from].fill(T::NEG_INFINITY);
            scores[to.max(from)..].fill(T::NEG_INFINITY);
        }
    }
    if let Some(padding) = operands.padding {
        let padding = &padding[at.batch * problem.kv_len..][keys.clone()];
        for (scores, &padding) in scores.chunks_exact_mut(n_queries).zip(padding) {
            if padding != 0 {
                scores.fill(T::NEG_INFINITY);
            }
        }
    }
    if let Some((of_queries, of_keys)) = segments(problem, operands, at, keys)
        && !are_one_segment(of_queries, of_keys)
    {
        for (scores, key) in scores.chunks_exact_mut(n_queries).zip(of_keys) {
            for (score, query) in scores.iter_mut().zip(of_queries) {
                *score = if query == key { *score } else { T::NEG_INFINITY };
            }
        }
    }
}

/// The segments of some queries and of some keys.
type Segments<'a> = (&'a [u32], &'a [u32]);

#[inline(always)]
fn segments<'a, T>(
    problem: &Problem,
    operands: &Operands<'a, T>,
    at: &Queries,
    keys: &Range<usize>,
) -> Option<Segments<'a>> {
    let segments = &operands.segments?[at.batch * problem.kv_len..][..problem.kv_len];
    Some((&segments[at.rows.clone()], &segments[keys.clone()]))
}

/// Whether all queries and keys belong to one segment.
fn are_one_segment(of_queries: &[u32], of_keys: &[u32]) -> bool {
    of_queries.iter().chain(of_keys).all(|segment| segment == &of_queries[0])
}

/// Whether the ranges of the segments of queries and keys do not overlap.
fn do_not_overlap(of_queries: &[u32], of_keys: &[u32]) -> bool {
    let bounds =
        |segments: &[u32]| segments.iter().min().copied().zip(segments.iter().max().copied());
    match (bounds(of_queries), bounds(of_keys)) {
        (Some((q_min, q_max)), Some((k_min, k_max))) => q_max < k_min || k_max < q_min,
        _ => true,
    }
}

/// `to (keys, n_queries)`: each of the rows `keys` times each of the `columns (width, n_queries)`.
#[inline(always)]
pub(super) fn dots<S: Simd, T: Lanes>(
    simd: S,
    rows: Matrix<'_, T>,
    keys: &Range<usize>,
    columns: &[T],
    to: &mut [T],
) {
    let rows_of_keys = RowMajor {
        data: &rows.data()[keys.start * rows.row_stride()..],
        stride: rows.row_stride(),
        depth: rows.columns(),
    };
    let columns = vectors::<T, S>(columns);
    let right = Right { rows: columns, width: columns.len() / rows.columns() };
    product::<S, T, _>(simd, Start::Zero, vectors_mut::<T, S>(to), rows_of_keys, right, keys.len());
}

/// Whether none of the keys may be read, because all are padding or of other segments.
pub(super) fn is_masked<T>(
    problem: &Problem,
    operands: &Operands<'_, T>,
    at: &Queries,
    keys: &Range<usize>,
) -> bool {
    let first = at.batch * problem.kv_len;
    let all = |padding: &[u8]| padding[first..][keys.clone()].iter().all(|&padding| padding != 0);
    operands.padding.is_some_and(all)
        || segments(problem, operands, at, keys)
            .is_some_and(|(of_queries, of_keys)| do_not_overlap(of_queries, of_keys))
}

/// `mask (keys, n_queries)`: 0 where dropout drops a weight, its scale where it keeps one.
///
/// The mask of `tealight_ops::dropout` on weights of `(batch, n_heads, q_len, kv_len)`.
#[inline(always)]
pub(super) fn dropout<T: Lanes>(
    problem: &Problem,
    at: &Queries,
    keys: &Range<usize>,
    n_queries: usize,
    mask: &mut [T],
) {
    let Some(dropout) = problem.dropout.map(Dropout::<T>::new) else { return };
    let first_row = (at.batch * problem.n_heads + at.head) * problem.q_len;
    // Whole rows are consecutive in the stream and are drawn at once.
    let whole = keys.len() == problem.kv_len;
    let n_runs = if whole { 1 } else { at.rows.len() };
    let len = if whole { at.rows.len() * keys.len() } else { keys.len() };
    for run in 0..n_runs {
        let row = first_row + at.rows.start + run;
        let first = (row * problem.kv_len + keys.start) as u64;
        let (mut lane, mut key) = (run, 0);
        dropout.factors(
            first,
            len,
            #[inline(always)]
            |_, factors| {
                for &factor in factors {
                    mask[key * n_queries + lane] = factor;
                    key += 1;
                    if key == keys.len() {
                        (lane, key) = (lane + 1, 0);
                    }
                }
            },
        );
    }
}
