//! The backward: recomputes the weights tile by tile, and the gradients from them.

use std::ops::Range;

use pulp::Simd;

use super::plan::{Bias, Block, Plan};
use super::product::{ColumnMajor, Right, RowMajor, Start, product};
use super::tile::{
    KEYS, Queries, dots, dropout, is_masked, n_queries, pack, padded, scores, transpose,
};
use super::{Operands, RowStatistics, Strided, Tile, heads, tiles};
use crate::backend::buffer::unwritten;
use crate::backend::matrix::{Matrix, MatrixMut};
use crate::backend::parallel::{self, add_scaled};
use crate::backend::scratch::Scratch;
use crate::backend::simd::vector::{Kernel, Lanes, lanes, run, vectors, vectors_mut};
use crate::ops::attention::problem::Problem;

/// The results of the forward, and the gradient of the output.
pub(in crate::ops::attention) struct ForwardResults<'a, T> {
    /// The softmax statistics of every row.
    pub(in crate::ops::attention) rows: &'a [RowStatistics<T>],
    /// `(batch, n_heads, q_len, value_dim)`
    pub(in crate::ops::attention) output: Strided<'a, T>,
    /// The gradient of the output.
    pub(in crate::ops::attention) gradient: Strided<'a, T>,
}

/// Gradients, contiguous in the order of the operands.
pub(in crate::ops::attention) struct Gradients<T> {
    pub(in crate::ops::attention) query: Vec<T>,
    pub(in crate::ops::attention) key: Vec<T>,
    pub(in crate::ops::attention) value: Vec<T>,
    /// `(n_heads, q_len, kv_len)`, if it is needed.
    pub(in crate::ops::attention) bias: Option<Vec<T>>,
}

pub(in crate::ops::attention) fn backward<T: Lanes>(
    problem: &Problem,
    operands: &Operands<'_, T>,
    results: &ForwardResults<'_, T>,
    bias: Bias,
) -> Gradients<T> {
    let &Problem { batch, n_heads, n_kv_heads, q_len, kv_len, head_dim, value_dim, .. } = problem;
    let plan = Plan::of(problem, bias);
    let n_units = batch * n_kv_heads * plan.n_chunks;
    let mut query = unwritten(batch * n_heads * q_len * head_dim);
    let mut key = unwritten(n_units * kv_len * head_dim);
    let mut value = unwritten(n_units * kv_len * value_dim);
    let mut bias = (bias == Bias::Learnt).then(|| vec![T::ZERO; n_heads * q_len * kv_len]);
    let mut tiles = tiles(problem, &mut query, head_dim);
    let keys = plan.places(problem, &mut key, head_dim);
    let values = plan.places(problem, &mut value, value_dim);
    let blocks = plan.blocks(problem, &mut tiles, keys, values, bias.as_deref_mut());
    let work = problem.multiply_adds() * 5 / 2;
    run(work, blocks, &Backward { problem, operands, results });
    Gradients {
        query,
        key: sum_of_chunks(problem, key, head_dim, plan.n_chunks),
        value: sum_of_chunks(problem, value, value_dim, plan.n_chunks),
        bias,
    }
}

/// The sum of every `n_chunks` consecutive matrices `(kv_len, width)`, in the order of the operands.
fn sum_of_chunks<T: Lanes>(problem: &Problem, x: Vec<T>, width: usize, n_chunks: usize) -> Vec<T> {
    if n_chunks == 1 {
        return x;
    }
    let &Problem { n_kv_heads, kv_len, layout, .. } = problem;
    let mut sums = unwritten(x.len() / n_chunks);
    let places = heads(layout, &mut sums, [n_kv_heads, kv_len, width]);
    parallel::run(
        x.len(),
        places.zip(x.chunks(n_chunks * kv_len * width)),
        #[inline(always)]
        |(mut sum, chunks): (MatrixMut<'_, T>, &[T])| {
            for (i, chunk) in chunks.chunks_exact(kv_len * width).enumerate() {
                for (row, x) in chunk.chunks_exact(width).enumerate() {
                    let sum = sum.row(row);
                    if i == 0 {
                        sum.copy_from_slice(x);
                    } else {
                        add_scaled(sum, x, T::ONE);
                    }
                }
            }
        },
    );
    sums
}

struct Backward<'a, T> {
    problem: &'a Problem,
    operands: &'a Operands<'a, T>,
    results: &'a ForwardResults<'a, T>,
}

impl<T: Lanes> Kernel<Block<'_, '_, T>> for Backward<'_, T> {
    #[inline(always)]
    fn run<S: Simd>(&self, simd: S, mut block: Block<'_, '_, T>) {
        let problem = self.problem;
        let mut memory = Scratch::new();
        let mut buffers = Buffers::of(&mut memory, problem);
        for unit in &mut block.units {
            buffers.key_gradient.fill(T::ZERO);
            buffers.value_gradient.fill(T::ZERO);
            let mut bias = block.bias.as_deref_mut();
            for Tile { at, result } in &mut *unit.tiles {
                let bias = bias.as_mut().map(|bias| {
                    let (rows, rest) =
                        std::mem::take(bias).split_at_mut(at.rows.len() * problem.kv_len);
                    *bias = rest;
                    rows
                });
                self.tile(simd, at, &mut buffers, bias);
                unpack(result, buffers.query_gradient, T::from_f64(problem.scale));
            }
            unpack(&mut unit.key, buffers.key_gradient, T::ONE);
            unpack(&mut unit.value, buffers.value_gradient, T::ONE);
        }
    }
}

/// Padded rows to rows without padding, times `scale`.
#[inline(always)]
fn unpack<T: Lanes>(to: &mut MatrixMut<'_, T>, from: &[T], scale: T) {
    let width = padded(to.columns());
    for (i, from) in (0..to.rows()).zip(from.chunks_exact(width)) {
        for (to, &x) in to.row(i).iter_mut().zip(from) {
            *to = x * scale;
        }
    }
}

struct Buffers<'a, T> {
    queries: &'a mut [T],        // (head_dim, n_queries), scaled
    query_rows: &'a mut [T],     // (n_queries, padded head_dim), scaled
    gradients: &'a mut [T],      // (value_dim, n_queries): of the output
    outputs: &'a mut [T],        // (value_dim, n_queries)
    gradient_rows: &'a mut [T],  // (n_queries, padded value_dim)
    shift: &'a mut [T],          // (n_queries)
    scale: &'a mut [T],          // (n_queries)
    delta: &'a mut [T],          // (n_queries): Σ dO ⊙ O
    weights: &'a mut [T],        // (KEYS, n_queries)
    score_gradient: &'a mut [T], // (KEYS, n_queries)
    mask: &'a mut [T],           // (KEYS, n_queries), with dropout
    keys: &'a mut [T],           // (KEYS, padded head_dim)
    query_gradient: &'a mut [T], // (n_queries, padded head_dim)
    key_gradient: &'a mut [T],   // (kv_len, padded head_dim)
    value_gradient: &'a mut [T], // (kv_len, padded value_dim)
}

impl<'a, T: Lanes> Buffers<'a, T> {
    fn of(memory: &'a mut Scratch, problem: &Problem) -> Self {
        let n_queries = n_queries(problem.q_len);
        let n_keys = KEYS.min(problem.kv_len);
        let (head_dim, value_dim) = (padded(problem.head_dim), padded(problem.value_dim));
        let [queries, gradients, outputs] =
            [problem.head_dim, problem.value_dim, problem.value_dim].map(|width| width * n_queries);
        let tile = n_keys * n_queries;
        let mask = if problem.dropout.is_some() { tile } else { 0 };
        let [
            queries,
            query_rows,
            gradients,
            outputs,
            gradient_rows,
            shift,
            scale,
            delta,
            weights,
            score_gradient,
            mask,
            keys,
            query_gradient,
            key_gradient,
            value_gradient,
        ] = memory.areas([
            queries,
            n_queries * head_dim,
            gradients,
            outputs,
            n_queries * value_dim,
            n_queries,
            n_queries,
            n_queries,
            tile,
            tile,
            mask,
            n_keys * head_dim,
            n_queries * head_dim,
            problem.kv_len * head_dim,
            problem.kv_len * value_dim,
        ]);
        Self {
            queries,
            query_rows,
            gradients,
            outputs,
            gradient_rows,
            shift,
            scale,
            delta,
            weights,
            score_gradient,
            mask,
            keys,
            query_gradient,
            key_gradient,
            value_gradient,
        }
    }
}

impl<T: Lanes> Backward<'_, T> {
    /// Computes the gradient of the tile's queries, and adds to the gradients of keys, values and bias.
    #[inline(always)]
    fn tile<S: Simd>(
        &self,
        simd: S,
        at: &Queries,
        buffers: &mut Buffers<'_, T>,
        mut bias: Option<&mut [T]>,
    ) {
        let (problem, operands) = (self.problem, self.operands);
        let n_queries = n_queries(problem.q_len);
        self.prepare(simd, at, buffers);
        let kv_head = at.head / problem.group();
        let key = operands.key.matrix(at.batch, kv_head);
        let value = operands.value.matrix(at.batch, kv_head);
        let all = problem.band.keys_of(&at.rows);
        for first in all.clone().step_by(KEYS) {
            let keys = first..(first + KEYS).min(all.end);
            if is_masked(problem, operands, at, &keys) {
                continue;
            }
            let len = keys.len() * n_queries;
            let weights = &mut buffers.weights[..len];
            scores(simd, problem, operands, at, &keys, buffers.queries, weights);
            let score_gradient = &mut buffers.score_gradient[..len];
            dots(simd, value, &keys, buffers.gradients, score_gradient);
            let mask = problem.dropout.is_some().then(|| {
                let mask = &mut buffers.mask[..len];
                dropout(problem, at, &keys, n_queries, mask);
                &*mask
            });
            softmax_backward::<S, T>(
                simd,
                vectors_mut::<T, S>(weights),
                vectors_mut::<T, S>(score_gradient),
                mask.map(vectors::<T, S>),
                &[&*buffers.shift, &*buffers.scale, &*buffers.delta].map(vectors::<T, S>),
            );
            if let Some(bias) = &mut bias {
                add_to_bias(bias, score_gradient, &keys, n_queries, problem.kv_len);
            }
            Self::to_keys(simd, problem, at, &keys, buffers);
            Self::to_queries(simd, problem, at, &keys, key, buffers);
        }
    }

    /// Packs queries and gradients in both orders, and the statistics of every row.
    #[inline(always)]
    fn prepare<S: Simd>(&self, simd: S, at: &Queries, buffers: &mut Buffers<'_, T>) {
        let (problem, results) = (self.problem, self.results);
        let scale = T::from_f64(problem.scale);
        let query = self.operands.query.matrix(at.batch, at.head);
        let output = results.output.matrix(at.batch, at.head);
        let gradient = results.gradient.matrix(at.batch, at.head);
        transpose(buffers.queries, query, at, scale);
        transpose(buffers.gradients, gradient, at, T::ONE);
        pack(buffers.query_rows, query, at.rows.clone(), scale);
        pack(buffers.gradient_rows, gradient, at.rows.clone(), T::ONE);
        buffers.query_gradient.fill(T::ZERO);

        let first = (at.batch * problem.n_heads + at.head) * problem.q_len;
        transpose(buffers.outputs, output, at, T::ONE);
        // Summed in the same order as dO Vᵀ, so that the two cancel exactly where a weight is 1.
        let delta = vectors_mut::<T, S>(buffers.delta);
        let outputs = vectors::<T, S>(buffers.outputs);
        let gradients = vectors::<T, S>(buffers.gradients);
        delta.fill(T::splat(simd, T::ZERO));
        let width = delta.len();
        for (o, g) in outputs.chunks_exact(width).zip(gradients.chunks_exact(width)) {
            for column in 0..width {
                delta[column] = T::multiply_add(simd, o[column], g[column], delta[column]);
            }
        }
        // Idle lanes have weights of 0.
        buffers.shift.fill(-T::NEG_INFINITY);
        buffers.scale.fill(T::ZERO);
        for (lane, row) in at.rows.clone().enumerate() {
            buffers.shift[lane] = results.rows[first + row].shift;
            buffers.scale[lane] = results.rows[first + row].scale;
        }
    }

    /// dV += (P ⊙ mask)ᵀ dO,  dK += dSᵀ (scale Q)
    #[inline(always)]
    fn to_keys<S: Simd>(
        simd: S,
        problem: &Problem,
        at: &Queries,
        keys: &Range<usize>,
        buffers: &mut Buffers<'_, T>,
    ) {
        let n_queries = n_queries(problem.q_len);
        let left = |data| RowMajor { data, stride: n_queries, depth: at.rows.len() };
        for (to, data, rows, width) in [
            (
                &mut *buffers.value_gradient,
                &*buffers.weights,
                &*buffers.gradient_rows,
                padded(problem.value_dim),
            ),
            (
                &mut *buffers.key_gradient,
                &*buffers.score_gradient,
                &*buffers.query_rows,
                padded(problem.head_dim),
            ),
        ] {
            let to = &mut to[keys.start * width..keys.end * width];
            let right = Right { rows: vectors::<T, S>(rows), width: width / lanes::<T, S>() };
            let to = vectors_mut::<T, S>(to);
            product::<S, T, _>(simd, Start::Sum, to, left(data), right, keys.len());
        }
    }

    /// dQ += dS K
    #[inline(always)]
    fn to_queries<S: Simd>(
        simd: S,
        problem: &Problem,
        at: &Queries,
        keys: &Range<usize>,
        key: Matrix<'_, T>,
        buffers: &mut Buffers<'_, T>,
    ) {
        pack(buffers.keys, key, keys.clone(), T::ONE);
        product::<S, T, _>(
            simd,
            Start::Sum,
            vectors_mut::<T, S>(buffers.query_gradient),
            ColumnMajor {
                data: buffers.score_gradient,
                stride: n_queries(problem.q_len),
                depth: keys.len(),
            },
            Right {
                rows: vectors::<T, S>(buffers.keys),
                width: padded(problem.head_dim) / lanes::<T, S>(),
            },
            at.rows.len(),
        );
    }
}

/// Overwrites the scores S with P ⊙ mask, and the products dP with dS.
///
/// ```text
/// P = scale · exp(S − shift),   dS = P ⊙ (dP ⊙ mask − delta)
/// ```
#[inline(always)]
fn softmax_backward<S: Simd, T: Lanes>(
    simd: S,
    scores: &mut [T::Vector<S>],
    gradient: &mut [T::Vector<S>],
    mask: Option<&[T::Vector<S>]>,
    [shift, scale, delta]: &[&[T::Vector<S>]; 3],
) {
    let width = shift.len();
    for column in 0..width {
        let (shift, scale, delta) = (shift[column], scale[column], delta[column]);
        let rows = scores.chunks_exact_mut(width).zip(gradient.chunks_exact_mut(width));
        for (key, (scores, gradient)) in rows.enumerate() {
            let weight = T::exponential(simd, T::minus(simd, scores[column], shift));
            let weight = T::times(simd, weight, scale);
            let (kept, passed) = match mask {
                Some(mask) => {
                    let mask = mask[key * width + column];
                    (T::times(simd, weight, mask), T::times(simd, gradient[column], mask))
                }
                None => (weight, gradient[column]),
            };
            scores[column] = kept;
            gradient[column] = T::times(simd, weight, T::minus(simd, passed, delta));
        }
    }
}

/// Adds a tile `(keys, n_queries)` to rows of `kv_len`.
#[inline(always)]
fn add_to_bias<T: Lanes>(
    bias: &mut [T],
    tile: &[T],
    keys: &Range<usize>,
    n_queries: usize,
    kv_len: usize,
) {
    for (lane, bias) in bias.chunks_exact_mut(kv_len).enumerate() {
        let bias = &mut bias[keys.clone()];
        for (bias, tile) in bias.iter_mut().zip(tile.chunks_exact(n_queries)) {
            *bias += tile[lane];
        }
    }
}
