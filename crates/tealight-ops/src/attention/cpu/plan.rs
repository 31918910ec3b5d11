//! How the backward is shared out.
//!
//! A unit is one head of keys and values in one example, with all queries that read it, or with a
//! chunk of them where there would be too few units to share out. It sums the gradients of its keys
//! and values by itself; those of several chunks are added in their order.

use std::ops::Range;

use super::tile::{Queries, n_queries};
use crate::attention::problem::Problem;

/// Enough units for any number of threads, and few enough to add up their sums.
const UNITS: usize = 32;

/// Whether to sum the gradient of the bias.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::attention) enum Bias {
    Constant,
    Learnt,
}

/// How the work is cut, by the shape alone.
pub(super) struct Plan {
    /// Of the tiles of all queries that read one head of keys.
    pub(super) chunks: Vec<Range<usize>>,
    bias: Bias,
}

/// A head of keys in an example, some queries that read it, and where their gradients go.
pub(super) struct Unit<'a, T> {
    pub(super) batch: usize,
    pub(super) kv_head: usize,
    pub(super) tiles: Range<usize>,
    pub(super) query: &'a mut [T],
    pub(super) key: &'a mut [T],
    pub(super) value: &'a mut [T],
}

/// Units for one thread. Where the bias has a gradient they differ in the example alone.
pub(super) struct Block<'a, T> {
    pub(super) units: Vec<Unit<'a, T>>,
    pub(super) bias: Option<&'a mut [T]>,
}

impl Plan {
    pub(super) fn of(problem: &Problem, bias: Bias) -> Self {
        let n_tiles = problem.group() * problem.q_len.div_ceil(n_queries(problem.q_len));
        let apart = match bias {
            Bias::Constant => problem.batch * problem.n_kv_heads,
            Bias::Learnt => problem.n_kv_heads,
        };
        let n_chunks = (UNITS / apart).clamp(1, n_tiles);
        let per_chunk = n_tiles.div_ceil(n_chunks);
        let chunks = (0..n_tiles).step_by(per_chunk);
        Self { chunks: chunks.map(|at| at..(at + per_chunk).min(n_tiles)).collect(), bias }
    }

    pub(super) fn blocks<'a, T>(
        &self,
        problem: &Problem,
        mut query: &'a mut [T],
        key: &'a mut [T],
        value: &'a mut [T],
        bias: Option<&'a mut [T]>,
    ) -> Vec<Block<'a, T>> {
        let mut keys = key.chunks_mut(problem.kv_len * problem.head_dim);
        let mut values = value.chunks_mut(problem.kv_len * problem.value_dim);
        let mut units = Vec::new();
        for batch in 0..problem.batch {
            for kv_head in 0..problem.n_kv_heads {
                for tiles in &self.chunks {
                    let len = n_rows(problem, tiles) * problem.head_dim;
                    let (rows, rest) = query.split_at_mut(len);
                    query = rest;
                    if let (Some(key), Some(value)) = (keys.next(), values.next()) {
                        let tiles = tiles.clone();
                        units.push(Unit { batch, kv_head, tiles, query: rows, key, value });
                    }
                }
            }
        }
        match self.bias {
            Bias::Constant => {
                let per_block = problem.units_per_block(units.len());
                let mut blocks = Vec::with_capacity(units.len().div_ceil(per_block));
                let mut units = units.into_iter().peekable();
                while units.peek().is_some() {
                    let units = units.by_ref().take(per_block).collect();
                    blocks.push(Block { units, bias: None });
                }
                blocks
            }
            Bias::Learnt => self.blocks_by_bias(problem, units, bias),
        }
    }

    fn blocks_by_bias<'a, T>(
        &self,
        problem: &Problem,
        units: Vec<Unit<'a, T>>,
        bias: Option<&'a mut [T]>,
    ) -> Vec<Block<'a, T>> {
        let mut blocks = Vec::with_capacity(problem.n_kv_heads * self.chunks.len());
        let mut bias = bias.unwrap_or_default();
        for _ in 0..problem.n_kv_heads {
            for tiles in &self.chunks {
                let (rows, rest) = bias.split_at_mut(n_rows(problem, tiles) * problem.kv_len);
                bias = rest;
                blocks.push(Block { units: Vec::new(), bias: Some(rows) });
            }
        }
        let n_blocks = blocks.len();
        for (i, unit) in units.into_iter().enumerate() {
            blocks[i % n_blocks].units.push(unit);
        }
        blocks
    }
}

/// The queries of a chunk of tiles.
fn n_rows(problem: &Problem, tiles: &Range<usize>) -> usize {
    tiles.clone().map(|tile| queries_of(problem, 0, 0, tile).rows.len()).sum()
}

/// Tile `tile` of the heads that read `kv_head`.
pub(super) fn queries_of(problem: &Problem, batch: usize, kv_head: usize, tile: usize) -> Queries {
    let n_queries = n_queries(problem.q_len);
    let per_head = problem.q_len.div_ceil(n_queries);
    let first = tile % per_head * n_queries;
    Queries {
        batch,
        head: kv_head * problem.group() + tile / per_head,
        rows: first..(first + n_queries).min(problem.q_len),
    }
}
