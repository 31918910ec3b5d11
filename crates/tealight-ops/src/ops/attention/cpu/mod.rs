//! The CPU loops, in tiles of queries and keys.

mod backward;
mod forward;
mod plan;
mod product;
mod tile;

pub(super) use backward::{ForwardResults, backward};
pub(super) use forward::forward;
pub(super) use plan::Bias;

use super::Layout;
use super::problem::Problem;
use crate::backend::matrix::{Matrix, MatrixMut};
use tile::{Queries, n_queries};

/// The operands as slices.
pub(super) struct Operands<'a, T> {
    pub(super) query: Strided<'a, T>,
    pub(super) key: Strided<'a, T>,
    pub(super) value: Strided<'a, T>,
    pub(super) bias: Option<ScoreBias<'a, T>>,
    /// `(batch, kv_len)`, 1 = ignored.
    pub(super) padding: Option<&'a [u8]>,
    /// `(batch, len)`
    pub(super) segments: Option<&'a [u32]>,
}

/// The softmax statistics of a row: its weights are scale · exp(score − shift).
#[derive(Clone, Copy)]
pub(super) struct RowStatistics<T> {
    /// The largest score.
    shift: T,
    /// One over the sum of exponentials; 0 if the row reads nothing.
    scale: T,
}

/// `(batch, heads, len, width)`, rows of which are contiguous.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a, T> {
    pub(super) data: &'a [T],
    /// The distance between examples, heads and rows.
    pub(super) strides: [usize; 3],
    pub(super) len: usize,
    pub(super) width: usize,
}

impl<'a, T> Strided<'a, T> {
    /// `(len, width)`
    #[inline(always)]
    fn matrix(&self, batch: usize, head: usize) -> Matrix<'a, T> {
        let [batches, heads, rows] = self.strides;
        let data = &self.data[batch * batches + head * heads..];
        Matrix::strided(data, (self.len, self.width), (rows, 1))
    }
}

/// `(q_len, kv_len)` for all heads, or `(n_heads, q_len, kv_len)`.
#[derive(Clone, Copy)]
pub(super) struct ScoreBias<'a, T> {
    pub(super) data: &'a [T],
    /// The distance between heads: 0 if all share the bias.
    pub(super) head_stride: usize,
    pub(super) kv_len: usize,
}

impl<'a, T> ScoreBias<'a, T> {
    #[inline(always)]
    fn row(&self, head: usize, row: usize) -> &'a [T] {
        &self.data[head * self.head_stride + row * self.kv_len..][..self.kv_len]
    }
}

/// The matrices `(len, width)` of all heads, example by example, to write results to.
fn heads<T>(
    layout: Layout,
    data: &mut [T],
    [n_heads, len, width]: [usize; 3],
) -> impl Iterator<Item = MatrixMut<'_, T>> {
    // With the heads first, each head is treated as an example of one head.
    let across = if layout == Layout::HeadsFirst { 1 } else { n_heads };
    data.chunks_exact_mut(len * across * width).flat_map(move |example| {
        let mut rest = Some(MatrixMut::new(example, (len, across * width)));
        std::iter::from_fn(move || {
            let (head, others) = rest.take()?.split_columns(width);
            rest = (others.columns() > 0).then_some(others);
            Some(head)
        })
    })
}

/// The tiles of all queries, each with its rows of a result.
fn tiles<'a, T>(problem: &Problem, result: &'a mut [T], width: usize) -> Vec<Tile<'a, T>> {
    let Problem { n_heads, q_len, .. } = *problem;
    let n_queries = n_queries(q_len);
    let mut tiles = Vec::with_capacity(problem.n_tiles());
    for (i, head) in heads(problem.layout, result, [n_heads, q_len, width]).enumerate() {
        let mut below = head;
        for first in (0..q_len).step_by(n_queries) {
            let rows = first..(first + n_queries).min(q_len);
            let (result, rest) = below.split_rows(rows.len());
            below = rest;
            let at = Queries { batch: i / n_heads, head: i % n_heads, rows };
            tiles.push(Tile { at, result });
        }
    }
    tiles
}

/// Some queries of one head, and their rows of a result.
struct Tile<'a, T> {
    at: Queries,
    result: MatrixMut<'a, T>,
}

impl Problem {
    fn n_tiles(&self) -> usize {
        self.batch * self.n_heads * self.q_len.div_ceil(n_queries(self.q_len))
    }

    /// Multiply-adds of the forward if only keys outside of the window are skipped.
    fn multiply_adds(&self) -> usize {
        let widest = self.band.keys(self.q_len - 1).len().max(1);
        self.batch * self.n_heads * self.q_len * widest * (self.head_dim + self.value_dim)
    }

    /// How many of `n_units` equal units of work make a block large enough for a thread.
    fn units_per_block(&self, n_units: usize) -> usize {
        /// Multiply-adds of a block: some microseconds.
        const BLOCK: usize = 1 << 15;
        let per_unit = (self.multiply_adds() / n_units).max(1);
        (BLOCK / per_unit).clamp(1, n_units)
    }
}
