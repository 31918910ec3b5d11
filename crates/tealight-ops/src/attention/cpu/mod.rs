//! The fused loops, in tiles of queries and keys.

mod backward;
mod forward;
mod plan;
mod product;
mod tile;

pub(super) use backward::{Given, Gradients, backward};
pub(super) use forward::forward;
pub(super) use plan::Bias;

use super::problem::Problem;
use tile::{Queries, n_queries};

/// What an attention reads.
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

/// What the forward knows of a row of weights: they are scale · exp(score − shift).
#[derive(Clone, Copy)]
pub(super) struct Row<T> {
    /// The largest score.
    shift: T,
    /// One over the sum of exponentials; 0 where nothing may be read.
    scale: T,
}

/// `(batch, heads, len, width)`, rows of which are contiguous.
#[derive(Clone, Copy)]
pub(super) struct Strided<'a, T> {
    pub(super) data: &'a [T],
    /// From example to example, head to head, row to row.
    pub(super) strides: [usize; 3],
    pub(super) width: usize,
}

impl<'a, T> Strided<'a, T> {
    #[inline(always)]
    fn matrix(&self, batch: usize, head: usize) -> Matrix<'a, T> {
        let [batches, heads, stride] = self.strides;
        Matrix { data: &self.data[batch * batches + head * heads..], stride, width: self.width }
    }
}

/// `(len, width)`, rows of which are contiguous.
#[derive(Clone, Copy)]
struct Matrix<'a, T> {
    data: &'a [T],
    stride: usize,
    width: usize,
}

impl<'a, T> Matrix<'a, T> {
    #[inline(always)]
    fn row(&self, row: usize) -> &'a [T] {
        &self.data[row * self.stride..][..self.width]
    }
}

/// `(q_len, kv_len)` for all heads, or `(n_heads, q_len, kv_len)`.
#[derive(Clone, Copy)]
pub(super) struct ScoreBias<'a, T> {
    pub(super) data: &'a [T],
    /// From head to head: 0 if all share it.
    pub(super) head_stride: usize,
    pub(super) kv_len: usize,
}

impl<'a, T> ScoreBias<'a, T> {
    #[inline(always)]
    fn row(&self, head: usize, row: usize) -> &'a [T] {
        &self.data[head * self.head_stride + row * self.kv_len..][..self.kv_len]
    }
}

/// Tile `tile` of all queries, in the order of their rows.
fn tiles_of(problem: &Problem, tile: usize) -> Queries {
    let n_queries = n_queries(problem.q_len);
    let per_head = problem.q_len.div_ceil(n_queries);
    let (head, first) = (tile / per_head, tile % per_head * n_queries);
    Queries {
        batch: head / problem.n_heads,
        head: head % problem.n_heads,
        rows: first..(first + n_queries).min(problem.q_len),
    }
}

impl Problem {
    /// Of the forward pass, were nothing skipped but what lies outside the window.
    fn multiply_adds(&self) -> usize {
        let widest = self.band.keys(self.q_len - 1).len().max(1);
        self.batch * self.n_heads * self.q_len * widest * (self.head_dim + self.value_dim)
    }

    /// How many of `n_units` pieces of equal work make a block worth a thread's while.
    fn units_per_block(&self, n_units: usize) -> usize {
        /// Multiply-adds: some microseconds.
        const BLOCK: usize = 1 << 17;
        let per_unit = (self.multiply_adds() / n_units).max(1);
        (BLOCK / per_unit).clamp(1, n_units)
    }
}
