//! How threads share the backward.
//!
//! A unit of work is one head of keys and values in one example, with all queries that read it, or with a chunk of them
//! if there would be too few units. Each unit sums its own gradients of keys and values; the gradients of several
//! chunks are added in the order of the chunks.

use super::{QueryTile, heads};
use crate::backend::matrix::MatrixMut;
use crate::ops::attention::Layout;
use crate::ops::attention::problem::Problem;

/// Units to aim at: enough for the threads of a machine, and few enough to add up their sums.
const UNITS: usize = 32;

/// How the work is divided: a function of the shape, not of the number of threads.
pub(super) struct Plan {
    /// The chunks of the queries that read one head of keys.
    pub(super) n_chunks: usize,
    /// Tiles per chunk; the last chunk may have fewer.
    tiles_per_chunk: usize,
}

/// A head of keys in an example, some queries that read it, and the memory for its gradients.
pub(super) struct Unit<'a, 'b, T> {
    pub(super) tiles: &'a mut [QueryTile<'b, T>],
    pub(super) key: MatrixMut<'b, T>,
    pub(super) value: MatrixMut<'b, T>,
    /// dc of the heads that read the unit's keys, `(group, kv_len)`; empty if nothing is forgotten.
    pub(super) forget: &'b mut [T],
}

/// Units for one thread. If the gradient of the additive mask is computed, they differ only in the example.
pub(super) struct Block<'a, 'b, T> {
    pub(super) units: Vec<Unit<'a, 'b, T>>,
    /// The rows of the gradient of the additive mask that belong to the units' queries.
    pub(super) attn_mask: Option<&'b mut [T]>,
}

impl Plan {
    pub(super) fn from_problem(problem: &Problem, is_mask_learnt: bool) -> Self {
        let n_tiles = problem.group() * problem.q_len.div_ceil(problem.n_queries());
        // The gradient of a mask is summed over the examples by one thread.
        let n_apart = if is_mask_learnt { 1 } else { problem.batch } * problem.n_kv_heads;
        let tiles_per_chunk = n_tiles.div_ceil((UNITS / n_apart).clamp(1, n_tiles));
        Self { n_chunks: n_tiles.div_ceil(tiles_per_chunk), tiles_per_chunk }
    }

    /// The blocks, with memory for the gradients of keys, of values and of c, which is empty without decay. With several
    /// chunks, each has its own matrices.
    pub(super) fn blocks<'a, 'b, T>(
        &self,
        problem: &Problem,
        tiles: &'a mut [QueryTile<'b, T>],
        [key, value, forget]: [&'b mut [T]; 3],
        attn_mask: Option<&'b mut [T]>,
    ) -> Vec<Block<'a, 'b, T>> {
        let Problem { n_kv_heads, kv_len, head_dim, value_dim, .. } = *problem;
        let layout = if self.n_chunks == 1 { problem.layout } else { Layout::HeadsFirst };
        let keys = heads(layout, key, [n_kv_heads, kv_len, head_dim]);
        let values = heads(layout, value, [n_kv_heads, kv_len, value_dim]);
        let per_kv_head = tiles.len() / (problem.batch * problem.n_kv_heads);
        let chunks = tiles
            .chunks_mut(per_kv_head)
            .flat_map(|of_kv_head| of_kv_head.chunks_mut(self.tiles_per_chunk));
        let n_units = problem.batch * problem.n_kv_heads * self.n_chunks;
        let per_unit = forget.len() / n_units;
        let mut forget = forget;
        let forgets = std::iter::from_fn(move || {
            let (unit, rest) = std::mem::take(&mut forget).split_at_mut(per_unit);
            forget = rest;
            Some(unit)
        });
        let units = chunks.zip(keys.zip(values)).zip(forgets);
        let units = units.map(|((tiles, (key, value)), forget)| Unit { tiles, key, value, forget });
        if let Some(attn_mask) = attn_mask {
            return self.blocks_with_mask(problem, units, attn_mask);
        }
        let per_block = problem.units_per_block(n_units);
        let mut blocks = Vec::with_capacity(n_units.div_ceil(per_block));
        let mut units = units.peekable();
        while units.peek().is_some() {
            blocks.push(Block { units: units.by_ref().take(per_block).collect(), attn_mask: None });
        }
        blocks
    }

    fn blocks_with_mask<'a, 'b, T: 'b>(
        &self,
        problem: &Problem,
        units: impl Iterator<Item = Unit<'a, 'b, T>>,
        mut attn_mask: &'b mut [T],
    ) -> Vec<Block<'a, 'b, T>> {
        let n_blocks = problem.n_kv_heads * self.n_chunks;
        let mut blocks: Vec<_> = Vec::with_capacity(n_blocks);
        for (i, unit) in units.enumerate() {
            if i < n_blocks {
                let n_rows: usize = unit.tiles.iter().map(|tile| tile.queries.rows.len()).sum();
                let (rows, rest) = attn_mask.split_at_mut(n_rows * problem.kv_len);
                attn_mask = rest;
                blocks.push(Block { units: Vec::new(), attn_mask: Some(rows) });
            }
            blocks[i % n_blocks].units.push(unit);
        }
        blocks
    }
}
