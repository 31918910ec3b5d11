//! A tile: the scores of some queries of one head for some keys. The queries are the lanes of vectors.
//!
//! Scores are stored as `(keys, n_queries)`, so that the maximum, the exponential and the sum over keys are
//! operations on whole vectors, and keys and values are read in their own order.

use std::ops::Range;

use pulp::Simd;

use super::Operands;
use super::product::{Product, RightFactor, RowMajor, Start};
use crate::backend::matrix::Matrix;
use crate::backend::simd::vector::{Lanes, vectors, vectors_mut};
use crate::ops::attention::problem::Problem;
use crate::ops::dropout::Dropout;

/// The largest number of keys of a tile.
const KEYS: usize = 64;

/// The largest number of queries of a tile.
const QUERIES: usize = 64;

/// The elements of the widest vectors. Tiles consist of whole vectors.
const WIDEST: usize = 16;

/// `width` rounded up to whole vectors.
pub(super) fn padded(width: usize) -> usize {
    width.next_multiple_of(WIDEST)
}

impl Problem {
    /// The lanes of a tile of queries, including idle lanes at the end.
    pub(super) fn n_queries(&self) -> usize {
        padded(self.q_len).min(QUERIES)
    }

    /// The number of keys of the largest tile.
    pub(super) fn n_keys(&self) -> usize {
        self.kv_len.min(KEYS)
    }

    /// The number of elements of the largest tile of scores.
    pub(super) fn tile_len(&self) -> usize {
        self.n_keys() * self.n_queries()
    }
}

/// Some queries of one head.
pub(super) struct Queries {
    pub(super) batch: usize,
    pub(super) head: usize,
    pub(super) rows: Range<usize>,
}

/// The scores of some queries of one head for some keys that at least one of them may read.
pub(super) struct ScoreTile<'a, T: 'static> {
    problem: &'a Problem,
    operands: &'a Operands<'a, T>,
    pub(super) queries: &'a Queries,
    pub(super) keys: Range<usize>,
}

impl<'a, T: Lanes> ScoreTile<'a, T> {
    /// The tiles of all keys that any of `queries` may read, in their order. Tiles that are masked as a whole are
    /// left out.
    pub(super) fn for_queries(
        problem: &'a Problem,
        operands: &'a Operands<'a, T>,
        queries: &'a Queries,
    ) -> impl Iterator<Item = Self> {
        let all = problem.band.keys_of(&queries.rows);
        let tiles = all.clone().step_by(KEYS).map(move |first| {
            let keys = first..(first + KEYS).min(all.end);
            Self { problem, operands, queries, keys }
        });
        tiles.filter(|tile| !tile.is_masked())
    }

    /// The number of scores, including the scores of idle lanes.
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.keys.len() * self.problem.n_queries()
    }

    /// Writes the scores k·q plus additive mask and decay, −∞ for pairs that are masked. `query_columns
    /// (head_dim, n_queries)` are the queries, transposed and scaled.
    #[inline(always)]
    pub(super) fn write_scores<S: Simd>(&self, simd: S, query_columns: &[T], scores: &mut [T]) {
        let Self { problem, operands, queries, keys } = self;
        let n_queries = problem.n_queries();
        let key = operands.key.matrix(queries.batch, queries.head / problem.group());
        self.write_products(simd, key, query_columns, scores);
        if let Some(mask) = &operands.attn_mask {
            let mask = mask.matrix(queries.batch, queries.head);
            for (lane, row) in queries.rows.clone().enumerate() {
                let mask = &mask.row(row)[keys.clone()];
                for (scores, &x) in scores.chunks_exact_mut(n_queries).zip(mask) {
                    scores[lane] += x;
                }
            }
        }
        if let Some(forgetting) = &operands.forgetting {
            forgetting.add_to(scores, n_queries, queries, keys.clone());
        }
        if !problem.band.is_unmasked(&queries.rows, keys) {
            let rows = &queries.rows;
            for (scores, key) in scores.chunks_exact_mut(n_queries).zip(keys.clone()) {
                let readers = problem.band.queries(key);
                let from = readers.start.clamp(rows.start, rows.end) - rows.start;
                let to = readers.end.clamp(rows.start, rows.end) - rows.start;
                scores[..from].fill(T::NEG_INFINITY);
                scores[to.max(from)..].fill(T::NEG_INFINITY);
            }
        }
        if let Some(padding) = &operands.masks.padding {
            let padding = &padding[queries.batch * problem.kv_len..][keys.clone()];
            for (scores, &padding) in scores.chunks_exact_mut(n_queries).zip(padding) {
                if padding != 0 {
                    scores.fill(T::NEG_INFINITY);
                }
            }
        }
        if let Some((query_segments, key_segments)) = self.segments()
            && !are_one_segment(query_segments, key_segments)
        {
            for (scores, key) in scores.chunks_exact_mut(n_queries).zip(key_segments) {
                for (score, query) in scores.iter_mut().zip(query_segments) {
                    *score = if query == key { *score } else { T::NEG_INFINITY };
                }
            }
        }
    }

    /// Writes the product of each of the tile's rows of `matrix (kv_len, width)` with each of `columns
    /// (width, n_queries)`.
    #[inline(always)]
    pub(super) fn write_products<S: Simd>(
        &self,
        simd: S,
        matrix: Matrix<'_, T>,
        columns: &[T],
        products: &mut [T],
    ) {
        let columns = vectors::<T, S>(columns);
        let product = Product::<S, T, _> {
            simd,
            start: Start::Zero,
            c: vectors_mut::<T, S>(products),
            left: RowMajor {
                data: &matrix.data()[self.keys.start * matrix.row_stride()..],
                stride: matrix.row_stride(),
                depth: matrix.columns(),
            },
            right: RightFactor { rows: columns, width: columns.len() / matrix.columns() },
            n_rows: self.keys.len(),
        };
        product.write(self.operands.rounded.as_ref());
    }

    /// Whether none of the keys may be read, because all are padding or of other segments.
    fn is_masked(&self) -> bool {
        let first = self.queries.batch * self.problem.kv_len;
        let are_padding = |x: &Vec<u8>| x[first..][self.keys.clone()].iter().all(|&x| x != 0);
        self.operands.masks.padding.as_ref().is_some_and(are_padding)
            || self.segments().is_some_and(|(queries, keys)| do_not_overlap(queries, keys))
    }

    /// The segments of the queries, and the segments of the keys.
    #[inline(always)]
    fn segments(&self) -> Option<(&'a [u32], &'a [u32])> {
        let kv_len = self.problem.kv_len;
        let segments = self.operands.masks.segments.as_ref()?;
        let segments = &segments[self.queries.batch * kv_len..][..kv_len];
        Some((&segments[self.queries.rows.clone()], &segments[self.keys.clone()]))
    }

    /// Writes 0 to `factors (keys, n_queries)` where dropout drops a weight, and its scale where it keeps one.
    ///
    /// The factors of `tealight_ops::dropout` on weights of `(batch, n_heads, q_len, kv_len)`.
    #[inline(always)]
    pub(super) fn write_dropout_factors(&self, factors: &mut [T]) {
        let Self { problem, queries: Queries { batch, head, rows }, keys, .. } = self;
        let Some(dropout) = problem.dropout.map(Dropout::<T>::new) else { return };
        let n_queries = problem.n_queries();
        let first_row = (batch * problem.n_heads + head) * problem.q_len;
        // Whole rows are consecutive in the stream and are drawn at once.
        let are_whole = keys.len() == problem.kv_len;
        let n_runs = if are_whole { 1 } else { rows.len() };
        let len = if are_whole { rows.len() * keys.len() } else { keys.len() };
        for run in 0..n_runs {
            let row = first_row + rows.start + run;
            let first = (row * problem.kv_len + keys.start) as u64;
            let (mut lane, mut key) = (run, 0);
            dropout.factors(
                first,
                len,
                #[inline(always)]
                |_, drawn| {
                    for &factor in drawn {
                        factors[key * n_queries + lane] = factor;
                        key += 1;
                        if key == keys.len() {
                            (lane, key) = (lane + 1, 0);
                        }
                    }
                },
            );
        }
    }
}

/// Whether all queries and keys belong to one segment.
fn are_one_segment(queries: &[u32], keys: &[u32]) -> bool {
    queries.iter().chain(keys).all(|segment| segment == &queries[0])
}

/// Whether the ranges of the segments of queries and keys do not overlap.
fn do_not_overlap(queries: &[u32], keys: &[u32]) -> bool {
    let bounds =
        |segments: &[u32]| segments.iter().min().copied().zip(segments.iter().max().copied());
    match (bounds(queries), bounds(keys)) {
        (Some((q_min, q_max)), Some((k_min, k_max))) => q_max < k_min || k_max < q_min,
        _ => true,
    }
}

/// `columns (width, n_queries)` of the rows of `matrix (len, width)` at the queries, times `scale`. Idle lanes
/// repeat the last row.
#[inline(always)]
pub(super) fn transpose<T: Lanes>(
    columns: &mut [T],
    matrix: Matrix<'_, T>,
    queries: &Queries,
    scale: T,
) {
    const ROWS: usize = 8;
    let n_queries = columns.len() / matrix.columns().max(1);
    let (start, last) = (queries.rows.start, queries.rows.end - 1);
    let mut first = 0;
    while first < n_queries {
        let mut rows = [matrix.row(last); ROWS];
        for (r, row) in rows.iter_mut().enumerate() {
            *row = matrix.row((start + first + r).min(last));
        }
        for d in 0..matrix.columns() {
            let column = &mut columns[d * n_queries + first..][..ROWS];
            for r in 0..ROWS {
                column[r] = rows[r][d] * scale;
            }
        }
        first += ROWS;
    }
}

/// Copies rows of `matrix` into `padded` rows, times `scale`. Elements past the width are not changed.
#[inline(always)]
pub(super) fn pack<T: Lanes>(to: &mut [T], matrix: Matrix<'_, T>, rows: Range<usize>, scale: T) {
    let width = padded(matrix.columns());
    for (to, row) in to.chunks_exact_mut(width).zip(rows) {
        for (to, &x) in to.iter_mut().zip(matrix.row(row)) {
            *to = x * scale;
        }
    }
}
