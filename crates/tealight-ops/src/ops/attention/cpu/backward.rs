//! The backward: recomputes the weights tile by tile, and the gradients from them.

use std::ops::Range;

use pulp::Simd;

use super::forgetting::gradient_of_gates;
use super::plan::{Block, Plan};
use super::product::{ColumnMajor, Product, RightFactor, RowMajor, Start};
use super::tile::{Queries, ScoreTile, pack, padded, transpose};
use super::{Operands, QueryTile, RowStatistics, Strided, heads, query_tiles, scratch_memory};
use crate::backend::buffer::unwritten;
use crate::backend::gemm::RoundedProducts;
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

/// The gradients of the operands; of the optional ones if they are there.
pub(in crate::ops::attention) struct Gradients<T> {
    /// Of query, key and value, in the order of their axes.
    pub(in crate::ops::attention) query: Vec<T>,
    pub(in crate::ops::attention) key: Vec<T>,
    pub(in crate::ops::attention) value: Vec<T>,
    /// `(n_heads, q_len, kv_len)`, if it is needed.
    pub(in crate::ops::attention) attn_mask: Option<Vec<T>>,
    /// `(n_heads)`
    pub(in crate::ops::attention) sink: Option<Vec<T>>,
    /// `(batch, n_heads, kv_len)`
    pub(in crate::ops::attention) log_forget: Option<Vec<T>>,
}

/// All gradients.
pub(in crate::ops::attention) fn backward<T: Lanes>(
    problem: &Problem,
    operands: &Operands<'_, T>,
    results: &ForwardResults<'_, T>,
) -> Gradients<T> {
    let &Problem { batch, n_heads, n_kv_heads, q_len, kv_len, head_dim, value_dim, .. } = problem;
    let plan = Plan::from_problem(problem, operands.is_mask_learnt);
    let n_units = batch * n_kv_heads * plan.n_chunks;
    let mut query = unwritten(batch * n_heads * q_len * head_dim);
    let mut key = unwritten(n_units * kv_len * head_dim);
    let mut value = unwritten(n_units * kv_len * value_dim);
    let mut attn_mask = operands.is_mask_learnt.then(|| vec![T::ZERO; n_heads * q_len * kv_len]);
    let mut forget = operands.forgetting.as_ref().map(|_| {
        let n_keys = problem.group() * kv_len; // of a unit
        vec![T::ZERO; n_units * n_keys]
    });
    let mut tiles = query_tiles(problem, &mut query, head_dim);
    let of_units = [&mut key[..], &mut value, forget.as_deref_mut().unwrap_or_default()];
    let blocks = plan.blocks(problem, &mut tiles, of_units, attn_mask.as_deref_mut());
    let work = problem.multiply_adds() * 5 / 2;
    run(work, blocks, &Backward { problem, operands, results });
    let key = sum_of_chunks(problem, key, head_dim, plan.n_chunks);
    let value = sum_of_chunks(problem, value, value_dim, plan.n_chunks);
    let forget = forget.map(|dc| {
        let dc = sum_of_parts(&dc, plan.n_chunks, problem.group() * kv_len);
        gradient_of_gates(problem, dc, operands.masks.padding.as_deref())
    });
    let sink = operands.sink.as_ref().map(|sink| sink_gradient(problem, sink, results));
    Gradients { query, key, value, attn_mask, sink, log_forget: forget }
}

/// dz of each head: −Σ over its rows of scale · e^(z − shift) · (dO·O), in f64.
fn sink_gradient<T: Lanes>(
    problem: &Problem,
    sink: &[T],
    results: &ForwardResults<'_, T>,
) -> Vec<T> {
    let &Problem { batch, n_heads, q_len, value_dim, .. } = problem;
    parallel::run::<T, _, _>(
        batch * n_heads * q_len * value_dim,
        0..n_heads,
        #[inline(always)]
        |head| {
            let mut gradient = 0.;
            for example in 0..batch {
                let [output, of_output] =
                    [&results.output, &results.gradient].map(|x| x.matrix(example, head));
                let rows = &results.rows[(example * n_heads + head) * q_len..][..q_len];
                for (i, row) in rows.iter().enumerate() {
                    let mut delta = 0.;
                    for (&o, &g) in output.row(i).iter().zip(of_output.row(i)) {
                        delta += o.widen() * g.widen();
                    }
                    // A row that reads nothing has a scale of 0, and its exponential may be infinite.
                    if row.scale != T::ZERO {
                        let weight = row.scale * (sink[head] - row.shift).exp();
                        gradient -= weight.widen() * delta;
                    }
                }
            }
            T::from_f64(gradient)
        },
    )
}

/// The sums of every `n_parts` consecutive parts of `len` numbers.
fn sum_of_parts<T: Lanes>(x: &[T], n_parts: usize, len: usize) -> Vec<T> {
    let mut sums = Vec::with_capacity(x.len() / n_parts);
    for parts in x.chunks_exact(n_parts * len) {
        let mut sum = parts[..len].to_vec();
        for part in parts[len..].chunks_exact(len) {
            add_scaled(&mut sum, part, T::ONE);
        }
        sums.extend(sum);
    }
    sums
}

/// The sum of every `n_chunks` consecutive matrices `(kv_len, width)`, in the order of the operands.
fn sum_of_chunks<T: Lanes>(problem: &Problem, x: Vec<T>, width: usize, n_chunks: usize) -> Vec<T> {
    if n_chunks == 1 {
        return x;
    }
    let &Problem { n_kv_heads, kv_len, layout, .. } = problem;
    let mut sums = unwritten(x.len() / n_chunks);
    let places = heads(layout, &mut sums, [n_kv_heads, kv_len, width]);
    parallel::run::<T, _, _>(
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

struct Backward<'a, T: 'static> {
    problem: &'a Problem,
    operands: &'a Operands<'a, T>,
    results: &'a ForwardResults<'a, T>,
}

impl<T: Lanes> Kernel<Block<'_, '_, T>> for Backward<'_, T> {
    type Number = T;

    #[inline(always)]
    fn run<S: Simd>(&self, simd: S, mut block: Block<'_, '_, T>) {
        let problem = self.problem;
        let mut memory = Scratch::new();
        let mut buffers = Buffers::from_scratch(&mut memory, problem);
        for unit in &mut block.units {
            buffers.key_gradient.fill(T::ZERO);
            buffers.value_gradient.fill(T::ZERO);
            let mut remaining = block.attn_mask.as_deref_mut();
            for QueryTile { queries, result } in &mut *unit.tiles {
                let mask_gradient = remaining.take().map(|rows| {
                    let (rows, rest) = rows.split_at_mut(queries.rows.len() * problem.kv_len);
                    remaining = Some(rest);
                    rows
                });
                let first = queries.head % problem.group() * problem.kv_len;
                let dc = unit.forget.get_mut(first..first + problem.kv_len);
                self.tile(simd, queries, &mut buffers, mask_gradient, dc);
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

scratch_memory! {
    /// The scratch memory of a unit; all but the last two fields are of a tile of queries.
    struct Buffers(problem) {
        queries: problem.head_dim * problem.n_queries(), // (head_dim, n_queries), scaled
        query_rows: problem.n_queries() * padded(problem.head_dim), // the same as padded rows
        gradients: problem.value_dim * problem.n_queries(), // (value_dim, n_queries): of the output
        gradient_rows: problem.n_queries() * padded(problem.value_dim), // the same as padded rows
        outputs: problem.value_dim * problem.n_queries(), // (value_dim, n_queries)
        shift: problem.n_queries(),
        scale: problem.n_queries(),
        delta: problem.n_queries(), // Σ dO ⊙ O
        weights: problem.tile_len(), // (keys, n_queries)
        score_gradient: problem.tile_len(), // (keys, n_queries)
        dropout: if problem.dropout.is_some() { problem.tile_len() } else { 0 }, // its factors
        keys: problem.n_keys() * padded(problem.head_dim), // (keys, padded head_dim)
        query_gradient: problem.n_queries() * padded(problem.head_dim), // (n_queries, padded head_dim)
        key_gradient: problem.kv_len * padded(problem.head_dim), // (kv_len, padded head_dim)
        value_gradient: problem.kv_len * padded(problem.value_dim), // (kv_len, padded value_dim)
    }
}

impl<T: Lanes> Backward<'_, T> {
    /// Computes the gradient of the tile's queries, and adds to the gradients of keys, values, additive mask and c.
    #[inline(always)]
    fn tile<S: Simd>(
        &self,
        simd: S,
        queries: &Queries,
        buffers: &mut Buffers<'_, T>,
        mut mask_gradient: Option<&mut [T]>,
        mut dc: Option<&mut [T]>,
    ) {
        let Self { problem, operands, .. } = self;
        self.prepare(simd, queries, buffers);
        let kv_head = queries.head / problem.group();
        let key = operands.key.matrix(queries.batch, kv_head);
        let value = operands.value.matrix(queries.batch, kv_head);
        for tile in ScoreTile::for_queries(problem, operands, queries) {
            let weights = &mut buffers.weights[..tile.len()];
            tile.write_scores(simd, buffers.queries, weights);
            let score_gradient = &mut buffers.score_gradient[..tile.len()];
            tile.write_products(simd, value, buffers.gradients, score_gradient);
            let dropout = problem.dropout.is_some().then(|| {
                let factors = &mut buffers.dropout[..tile.len()];
                tile.write_dropout_factors(factors);
                &*factors
            });
            softmax_backward::<S, T>(
                simd,
                vectors_mut::<T, S>(weights),
                vectors_mut::<T, S>(score_gradient),
                dropout.map(vectors::<T, S>),
                &[&*buffers.shift, &*buffers.scale, &*buffers.delta].map(vectors::<T, S>),
            );
            if let Some(mask_gradient) = &mut mask_gradient {
                add_transposed(mask_gradient, score_gradient, &tile.keys, problem);
            }
            if let (Some(forgetting), Some(dc)) = (&operands.forgetting, &mut dc) {
                let n_queries = problem.n_queries();
                forgetting.add_gradient(dc, score_gradient, n_queries, queries, tile.keys.clone());
            }
            self.add_to_keys(simd, &tile, buffers);
            self.add_to_queries(simd, &tile, key, buffers);
        }
    }

    /// Writes queries, gradients and outputs in the orders that the products read, and the statistics of every
    /// row.
    #[inline(always)]
    fn prepare<S: Simd>(&self, simd: S, queries: &Queries, buffers: &mut Buffers<'_, T>) {
        let Self { problem, operands, results } = self;
        let Queries { batch, head, rows } = queries;
        let scale = T::from_f64(problem.scale);
        let query = operands.query.matrix(*batch, *head);
        let gradient = results.gradient.matrix(*batch, *head);
        transpose(buffers.queries, query, queries, scale);
        transpose(buffers.gradients, gradient, queries, T::ONE);
        transpose(buffers.outputs, results.output.matrix(*batch, *head), queries, T::ONE);
        pack(buffers.query_rows, query, rows.clone(), scale);
        pack(buffers.gradient_rows, gradient, rows.clone(), T::ONE);
        buffers.query_gradient.fill(T::ZERO);

        // Rounded and summed in the same order as dO Vᵀ, so that the two cancel exactly where a weight is 1.
        let is_rounded = operands.rounded.is_some();
        if is_rounded {
            RoundedProducts::round(buffers.gradients);
        }
        let delta = vectors_mut::<T, S>(buffers.delta);
        let outputs = vectors::<T, S>(buffers.outputs);
        let gradients = vectors::<T, S>(buffers.gradients);
        delta.fill(T::splat(simd, T::ZERO));
        let width = delta.len();
        for d in 0..problem.value_dim {
            // The instruction adds the second product of a pair of bf16 first.
            let d = if is_rounded { (d ^ 1).min(problem.value_dim - 1) } else { d };
            let [o, g] = [outputs, gradients].map(|x| &x[d * width..][..width]);
            for column in 0..width {
                delta[column] = T::multiply_add(simd, o[column], g[column], delta[column]);
            }
        }
        // Idle lanes have weights of 0.
        buffers.shift.fill(-T::NEG_INFINITY);
        buffers.scale.fill(T::ZERO);
        let first = (batch * problem.n_heads + head) * problem.q_len;
        for (lane, row) in rows.clone().enumerate() {
            buffers.shift[lane] = results.rows[first + row].shift;
            buffers.scale[lane] = results.rows[first + row].scale;
        }
    }

    /// dV += (P ⊙ dropout)ᵀ dO,  dK += dSᵀ (scale Q)
    #[inline(always)]
    fn add_to_keys<S: Simd>(&self, simd: S, tile: &ScoreTile<'_, T>, buffers: &mut Buffers<'_, T>) {
        let Problem { head_dim, value_dim, .. } = *self.problem;
        let Buffers { weights, gradient_rows, value_gradient, .. } = buffers;
        let Buffers { score_gradient, query_rows, key_gradient, .. } = buffers;
        for (to, left, right, width) in [
            (value_gradient, weights, gradient_rows, value_dim),
            (key_gradient, score_gradient, query_rows, head_dim),
        ] {
            let width = padded(width);
            let to = &mut to[tile.keys.start * width..tile.keys.end * width];
            let stride = self.problem.n_queries();
            let sums = Product::<S, T, _> {
                simd,
                start: Start::Sum,
                c: vectors_mut::<T, S>(to),
                left: RowMajor { data: left, stride, depth: tile.queries.rows.len() },
                right: RightFactor { rows: vectors::<T, S>(right), width: width / lanes::<T, S>() },
                n_rows: tile.keys.len(),
            };
            sums.write(self.operands.rounded.as_ref());
        }
    }

    /// dQ += dS K
    #[inline(always)]
    fn add_to_queries<S: Simd>(
        &self,
        simd: S,
        tile: &ScoreTile<'_, T>,
        key: Matrix<'_, T>,
        buffers: &mut Buffers<'_, T>,
    ) {
        let (stride, depth) = (self.problem.n_queries(), tile.keys.len());
        let width = padded(self.problem.head_dim) / lanes::<T, S>();
        pack(buffers.keys, key, tile.keys.clone(), T::ONE);
        let sums = Product::<S, T, _> {
            simd,
            start: Start::Sum,
            c: vectors_mut::<T, S>(buffers.query_gradient),
            left: ColumnMajor { data: buffers.score_gradient, stride, depth },
            right: RightFactor { rows: vectors::<T, S>(buffers.keys), width },
            n_rows: tile.queries.rows.len(),
        };
        sums.write(self.operands.rounded.as_ref());
    }
}

/// Overwrites the scores S with P ⊙ dropout, and the products dP with dS.
///
/// ```text
/// P = scale · exp(S − shift),   dS = P ⊙ (dP ⊙ dropout − delta)
/// ```
#[inline(always)]
fn softmax_backward<S: Simd, T: Lanes>(
    simd: S,
    scores: &mut [T::Vector<S>],
    gradient: &mut [T::Vector<S>],
    dropout: Option<&[T::Vector<S>]>,
    [shift, scale, delta]: &[&[T::Vector<S>]; 3],
) {
    let width = shift.len();
    for column in 0..width {
        let (shift, scale, delta) = (shift[column], scale[column], delta[column]);
        let rows = scores.chunks_exact_mut(width).zip(gradient.chunks_exact_mut(width));
        for (key, (scores, gradient)) in rows.enumerate() {
            let weight = T::exponential(simd, T::minus(simd, scores[column], shift));
            let weight = T::times(simd, weight, scale);
            let (kept, passed) = match dropout {
                Some(factors) => {
                    let factor = factors[key * width + column];
                    (T::times(simd, weight, factor), T::times(simd, gradient[column], factor))
                }
                None => (weight, gradient[column]),
            };
            scores[column] = kept;
            gradient[column] = T::times(simd, weight, T::minus(simd, passed, delta));
        }
    }
}

/// Adds a tile `(keys, n_queries)` to rows of `kv_len`, one for each query.
#[inline(always)]
fn add_transposed<T: Lanes>(rows: &mut [T], tile: &[T], keys: &Range<usize>, problem: &Problem) {
    for (lane, row) in rows.chunks_exact_mut(problem.kv_len).enumerate() {
        for (sum, tile) in row[keys.clone()].iter_mut().zip(tile.chunks_exact(problem.n_queries()))
        {
            *sum += tile[lane];
        }
    }
}
