//! The forward: for each tile of queries, a running softmax over tiles of keys.

use pulp::Simd;

use super::product::{ColumnMajor, Product, RightFactor, Start};
use super::tile::{Queries, ScoreTile, pack, padded, transpose};
use super::{Operands, QueryTile, RowStatistics, query_tiles, scratch_memory};
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
    let mut tiles: Vec<_> = query_tiles(problem, &mut output, problem.value_dim)
        .into_iter()
        .map(|tile| {
            let (rows, others) = std::mem::take(&mut rest).split_at_mut(tile.queries.rows.len());
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
type Block<'a, 'b, T> = &'a mut [(QueryTile<'b, T>, &'b mut [RowStatistics<T>])];

struct Forward<'a, T: 'static> {
    problem: &'a Problem,
    operands: &'a Operands<'a, T>,
}

impl<T: Lanes> Kernel<Block<'_, '_, T>> for Forward<'_, T> {
    type Number = T;

    #[inline(always)]
    fn run<S: Simd>(&self, simd: S, block: Block<'_, '_, T>) {
        let mut memory = Scratch::new();
        let mut buffers = Buffers::from_scratch(&mut memory, self.problem);
        for (tile, rows) in block {
            self.attend(simd, &tile.queries, &mut buffers);
            if let Some(sink) = &self.operands.sink {
                buffers.add_sink(sink[tile.queries.head], padded(self.problem.value_dim));
            }
            buffers.finish(self.problem, &mut tile.result, rows);
        }
    }
}

scratch_memory! {
    /// The scratch memory of a tile of queries.
    struct Buffers(problem) {
        queries: problem.head_dim * problem.n_queries(), // (head_dim, n_queries)
        scores: problem.tile_len(), // (keys, n_queries), then the weights
        dropout: if problem.dropout.is_some() { problem.tile_len() } else { 0 }, // its factors
        values: problem.n_keys() * padded(problem.value_dim), // (keys, padded value_dim)
        output: problem.n_queries() * padded(problem.value_dim), // (n_queries, padded value_dim)
        max: problem.n_queries(),
        sum: problem.n_queries(),
        scale: problem.n_queries(), // the factor of the previous sums under a new maximum
    }
}

impl<T: Lanes> Forward<'_, T> {
    /// Computes the maxima, the sums of the exponentials and the weighted sums of the values.
    #[inline(always)]
    fn attend<S: Simd>(&self, simd: S, queries: &Queries, buffers: &mut Buffers<'_, T>) {
        let Self { problem, operands } = self;
        let n_queries = problem.n_queries();
        let width = padded(problem.value_dim);
        let query = operands.query.matrix(queries.batch, queries.head);
        let value = operands.value.matrix(queries.batch, queries.head / problem.group());
        transpose(buffers.queries, query, queries, T::from_f64(problem.scale));
        buffers.max.fill(T::NEG_INFINITY);
        buffers.sum.fill(T::ZERO);
        buffers.output.fill(T::ZERO);
        for (i, tile) in ScoreTile::for_queries(problem, operands, queries).enumerate() {
            tile.write_scores(simd, buffers.queries, &mut buffers.scores[..tile.len()]);
            let is_scaled = buffers.exponentials(simd, tile.len());
            let weights = &mut buffers.scores[..tile.len()];
            if problem.dropout.is_some() {
                let factors = &mut buffers.dropout[..tile.len()];
                tile.write_dropout_factors(factors);
                for (weight, &factor) in weights.iter_mut().zip(factors.iter()) {
                    *weight *= factor;
                }
            }
            if is_scaled && i > 0 {
                scale_rows(buffers.output, buffers.scale, width);
            }
            pack(buffers.values, value, tile.keys.clone(), T::ONE);
            let sums = Product::<S, T, _> {
                simd,
                start: Start::Sum,
                c: vectors_mut::<T, S>(buffers.output),
                left: ColumnMajor { data: weights, stride: n_queries, depth: tile.keys.len() },
                right: RightFactor {
                    rows: vectors::<T, S>(buffers.values),
                    width: width / lanes::<T, S>(),
                },
                n_rows: queries.rows.len(),
            };
            sums.write(operands.rounded.as_ref());
        }
    }
}

impl<T: Lanes> Buffers<'_, T> {
    /// Overwrites the first `len` scores with their exponentials under the new maximum. Returns whether any previous
    /// sum has to be scaled down.
    #[inline(always)]
    fn exponentials<S: Simd>(&mut self, simd: S, len: usize) -> bool {
        let scores = vectors_mut::<T, S>(&mut self.scores[..len]);
        let max = vectors_mut::<T, S>(self.max);
        let sum = vectors_mut::<T, S>(self.sum);
        let scale = vectors_mut::<T, S>(self.scale);
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

    /// Adds the exponential of the sink to the sums of the rows that read any key.
    #[inline(always)]
    fn add_sink(&mut self, sink: T, width: usize) {
        for (lane, (max, sum)) in self.max.iter_mut().zip(self.sum.iter_mut()).enumerate() {
            self.scale[lane] = T::ONE;
            if *sum != T::ZERO {
                let shift = if sink > *max { sink } else { *max };
                self.scale[lane] = (*max - shift).exp();
                *sum = *sum * self.scale[lane] + (sink - shift).exp();
                *max = shift;
            }
        }
        scale_rows(self.output, self.scale, width);
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

/// Multiplies each row of `width` by its own number.
#[inline(always)]
fn scale_rows<T: Lanes>(rows: &mut [T], scales: &[T], width: usize) {
    for (row, &scale) in rows.chunks_exact_mut(width).zip(scales) {
        for x in row {
            *x *= scale;
        }
    }
}
