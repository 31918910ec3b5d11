//! The forward: for each tile of queries, a running softmax over tiles of keys.

use pulp::Simd;

use super::product::{ColumnMajor, Right, Start, product};
use super::tile::{KEYS, Queries, dropout, is_masked, n_queries, pack, padded, scores, transpose};
use super::{Operands, RowStatistics, Tile, tiles};
use crate::backend::buffer::unwritten;
use crate::backend::matrix::MatrixMut;
use crate::backend::scratch::Scratch;
use crate::backend::simd::vector::{Kernel, Lanes, lanes, run, vectors, vectors_mut};
use crate::ops::attention::problem::Problem;

/// The output, and the softmax statistics of each row for the backward.
pub(in crate::ops::attention) fn forward<T: Lanes>(
    problem: &Problem,
    operands: &Operands<'_, T>,
) -> (Vec<T>, Vec<RowStatistics<T>>) {
    let n_rows = problem.batch * problem.n_heads * problem.q_len;
    let mut output = unwritten(n_rows * problem.value_dim);
    let mut rows = vec![RowStatistics { shift: T::NAN, scale: T::NAN }; n_rows];
    let mut rest = &mut rows[..];
    let mut tiles: Vec<_> = tiles(problem, &mut output, problem.value_dim)
        .into_iter()
        .map(|tile| {
            let (rows, others) = std::mem::take(&mut rest).split_at_mut(tile.at.rows.len());
            rest = others;
            (tile, rows)
        })
        .collect();
    let per_block = problem.units_per_block(tiles.len());
    let blocks = tiles.chunks_mut(per_block).collect();
    run(problem.multiply_adds(), blocks, &Forward { problem, operands });
    (output, rows)
}

/// Consecutive tiles, and where to store the statistics of their rows.
type Block<'a, 'b, T> = &'a mut [(Tile<'b, T>, &'b mut [RowStatistics<T>])];

struct Forward<'a, T> {
    problem: &'a Problem,
    operands: &'a Operands<'a, T>,
}

impl<T: Lanes> Kernel<Block<'_, '_, T>> for Forward<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(&self, simd: S, block: Block<'_, '_, T>) {
        let mut memory = Scratch::new();
        let mut buffers = Buffers::of(&mut memory, self.problem);
        for (tile, rows) in block {
            attend(simd, self.problem, self.operands, &tile.at, &mut buffers);
            buffers.finish(self.problem, &mut tile.result, rows);
        }
    }
}

/// The scratch memory of a tile of queries.
struct Buffers<'a, T> {
    queries: &'a mut [T], // (head_dim, n_queries)
    scores: &'a mut [T],  // (KEYS, n_queries), then the weights
    mask: &'a mut [T],    // (KEYS, n_queries), with dropout
    values: &'a mut [T],  // (KEYS, padded value_dim)
    output: &'a mut [T],  // (n_queries, padded value_dim)
    max: &'a mut [T],     // (n_queries)
    sum: &'a mut [T],     // (n_queries)
    scale: &'a mut [T],   // (n_queries): the factor of the previous sums under a new maximum
}

impl<'a, T: Lanes> Buffers<'a, T> {
    fn of(memory: &'a mut Scratch, problem: &Problem) -> Self {
        let n_queries = n_queries(problem.q_len);
        let n_keys = KEYS.min(problem.kv_len);
        let value_dim = padded(problem.value_dim);
        let [queries, scores, mask, values, output, max, sum, scale] = memory.areas([
            problem.head_dim * n_queries,
            n_keys * n_queries,
            if problem.dropout.is_some() { n_keys * n_queries } else { 0 },
            n_keys * value_dim,
            n_queries * value_dim,
            n_queries,
            n_queries,
            n_queries,
        ]);
        Self { queries, scores, mask, values, output, max, sum, scale }
    }

    /// Divides the output by the sums, and stores the statistics.
    #[inline(always)]
    fn finish(
        &self,
        problem: &Problem,
        output: &mut MatrixMut<'_, T>,
        rows: &mut [RowStatistics<T>],
    ) {
        let sums = self.output.chunks_exact(padded(problem.value_dim));
        for (lane, (row, sums)) in rows.iter_mut().zip(sums).enumerate() {
            *row = if self.sum[lane] == T::ZERO {
                RowStatistics { shift: T::ZERO, scale: T::ZERO }
            } else {
                RowStatistics { shift: self.max[lane], scale: T::ONE / self.sum[lane] }
            };
            for (output, &sum) in output.row(lane).iter_mut().zip(sums) {
                *output = sum * row.scale;
            }
        }
    }
}

/// Computes the maxima, the sums of the exponentials and the weighted sums of the values.
#[inline(always)]
fn attend<S: Simd, T: Lanes>(
    simd: S,
    problem: &Problem,
    operands: &Operands<'_, T>,
    at: &Queries,
    buffers: &mut Buffers<'_, T>,
) {
    let n_queries = buffers.max.len();
    let query = operands.query.matrix(at.batch, at.head);
    transpose(buffers.queries, query, at, T::from_f64(problem.scale));
    buffers.max.fill(T::NEG_INFINITY);
    buffers.sum.fill(T::ZERO);
    buffers.output.fill(T::ZERO);
    let value = operands.value.matrix(at.batch, at.head / problem.group());

    let all = problem.band.keys_of(&at.rows);
    for first in all.clone().step_by(KEYS) {
        let keys = first..(first + KEYS).min(all.end);
        if is_masked(problem, operands, at, &keys) {
            continue;
        }
        let len = keys.len() * n_queries;
        let weights = &mut buffers.scores[..len];
        scores(simd, problem, operands, at, &keys, buffers.queries, weights);
        let is_scaled = exponentials::<S, T>(
            simd,
            vectors_mut::<T, S>(weights),
            vectors_mut::<T, S>(buffers.max),
            vectors_mut::<T, S>(buffers.sum),
            vectors_mut::<T, S>(buffers.scale),
        );
        if problem.dropout.is_some() {
            let mask = &mut buffers.mask[..len];
            dropout(problem, at, &keys, n_queries, mask);
            for (weight, &mask) in weights.iter_mut().zip(mask.iter()) {
                *weight *= mask;
            }
        }
        let width = padded(problem.value_dim);
        if is_scaled && first > all.start {
            scale_rows(buffers.output, buffers.scale, width);
        }
        pack(buffers.values, value, keys.clone(), T::ONE);
        let values = vectors::<T, S>(buffers.values);
        product::<S, T, _>(
            simd,
            Start::Sum,
            vectors_mut::<T, S>(buffers.output),
            ColumnMajor { data: &buffers.scores[..len], stride: n_queries, depth: keys.len() },
            Right { rows: values, width: width / lanes::<T, S>() },
            at.rows.len(),
        );
    }
}

/// Multiplies each row of `width` by its own number.
#[inline(always)]
fn scale_rows<T: Lanes>(rows: &mut [T], scales: &[T], width: usize) {
    for (row, &scale) in rows.chunks_exact_mut(width).zip(scales) {
        for x in row {
            *x *= scale;
        }
    }
}

/// Overwrites the scores with their exponentials under the new maximum. Returns whether any previous sum has to
/// be scaled down.
#[inline(always)]
fn exponentials<S: Simd, T: Lanes>(
    simd: S,
    scores: &mut [T::Vector<S>],
    max: &mut [T::Vector<S>],
    sum: &mut [T::Vector<S>],
    scale: &mut [T::Vector<S>],
) -> bool {
    let width = max.len();
    let mut is_scaled = false;
    for column in 0..width {
        let mut largest = max[column];
        for row in scores.chunks_exact(width) {
            largest = T::larger(simd, largest, row[column]);
        }
        // If all scores so far are −∞, nothing is subtracted: −∞ − (−∞) would be NaN.
        let mut shift = largest;
        for shift in
            pulp::bytemuck::cast_slice_mut::<T::Vector<S>, T>(std::slice::from_mut(&mut shift))
        {
            *shift = if *shift == T::NEG_INFINITY { T::ZERO } else { *shift };
        }
        scale[column] = T::exponential(simd, T::minus(simd, max[column], shift));
        let mut total = T::splat(simd, T::ZERO);
        for row in scores.chunks_exact_mut(width) {
            row[column] = T::exponential(simd, T::minus(simd, row[column], shift));
            total = T::plus(simd, total, row[column]);
        }
        sum[column] = T::multiply_add(simd, sum[column], scale[column], total);
        max[column] = largest;
        for &scale in
            pulp::bytemuck::cast_slice::<T::Vector<S>, T>(std::slice::from_ref(&scale[column]))
        {
            is_scaled |= scale != T::ONE;
        }
    }
    is_scaled
}
