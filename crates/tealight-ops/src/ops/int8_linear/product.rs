//! The product, in blocks of rows and columns on several threads.
//!
//! ```text
//! task     some rows, and columns whose weights stay in the second-level cache
//! strip      HEIGHT rows of x, which stay in the first-level cache, by all columns of the task
//! block        HEIGHT rows by COLUMNS: the sums of all depths
//! ```

use std::ops::Range;

use super::bytes::{COLUMNS, HEIGHT};
use super::kernels::{Strip, Sums};
use super::rows::{Rows, Scale};
use super::weight::Weight;
use crate::backend::matrix::MatrixMut;
use crate::backend::simd::int8::Int8;
use crate::backend::simd::vectorised;
use crate::backend::threads::{self, map};
use crate::ops::activation::{Function, activate, with_activation};

/// Bytes of the weights of a task.
const TASK_BYTES: usize = 256 << 10;
/// Fewer products run on one thread: waking another costs more than it saves.
const PARALLEL_FROM: usize = 1 << 19;

/// f(x Wᵀ + b).
pub(super) struct Product<'a> {
    pub(super) rows: &'a Rows,
    pub(super) weight: &'a Weight,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) function: Option<Function>,
}

/// Rows and blocks of columns of the result, and where they are stored.
struct Task<'a> {
    rows: Range<usize>,
    blocks: Range<usize>,
    y: MatrixMut<'a, f32>,
}

impl Product<'_> {
    /// Computes all rows into `y (rows, out)`.
    pub(super) fn store(&self, instructions: Int8, y: MatrixMut<'_, f32>) {
        let tasks = self.tasks(y);
        map(tasks, &|task| self.run(instructions, task));
    }

    fn tasks<'b>(&self, mut y: MatrixMut<'b, f32>) -> Vec<Task<'b>> {
        let (n_rows, n_blocks) = (self.rows.len(), self.weight.n_blocks());
        let n_products = n_rows * self.weight.n_outputs() * self.weight.depth();
        let n_tasks = if n_products < PARALLEL_FROM { 1 } else { 2 * threads::count() };
        let block_bytes = COLUMNS * self.weight.depth();
        let most = (TASK_BYTES / block_bytes).max(1);
        let per_task = n_blocks.div_ceil(n_tasks).max(1);
        let per_task = if n_tasks > 1 { per_task.min(most) } else { per_task };
        let n_down = n_tasks.div_ceil(n_blocks.div_ceil(per_task));
        let rows_per_task = n_rows.div_ceil(n_down).next_multiple_of(HEIGHT).max(HEIGHT);
        let mut tasks = Vec::new();
        for first in (0..n_rows).step_by(rows_per_task) {
            let rows = first..(first + rows_per_task).min(n_rows);
            let (mut right, below) = y.split_rows(rows.len());
            y = below;
            for first in (0..n_blocks).step_by(per_task) {
                let blocks = first..(first + per_task).min(n_blocks);
                let n_columns = (blocks.len() * COLUMNS).min(right.columns());
                let (y, others) = right.split_columns(n_columns);
                right = others;
                tasks.push(Task { rows: rows.clone(), blocks, y });
            }
        }
        tasks
    }

    fn run(&self, instructions: Int8, Task { rows, blocks, mut y }: Task<'_>) {
        for first in rows.clone().step_by(HEIGHT) {
            let here = first..(first + HEIGHT).min(rows.end);
            let in_y = first - rows.start..here.end - rows.start;
            let strip = Strip::new(self.rows, here.clone(), self.weight, blocks.clone());
            strip.run(instructions, &mut |block, sums| {
                let column = (block - blocks.start) * COLUMNS;
                let place = (in_y.start, column);
                self.write(block, &self.rows.scales()[here.clone()], sums, &mut y, place);
            });
            if let Some(function) = self.function {
                for i in in_y {
                    with_activation!(function, A => activate::<f32, A>(y.row(i)));
                }
            }
        }
    }

    /// Writes x Wᵀ + b of some rows and a block of columns to `y`, from this row and column on.
    fn write(
        &self,
        block: usize,
        scales: &[Scale],
        sums: &Sums,
        y: &mut MatrixMut<'_, f32>,
        (row, column): (usize, usize),
    ) {
        let n_columns = COLUMNS.min(y.columns() - column);
        let (of_columns, totals) = self.weight.columns(block);
        let mut bias = [0.; COLUMNS];
        if let Some(all) = self.bias {
            bias[..n_columns].copy_from_slice(&all[block * COLUMNS..][..n_columns]);
        }
        vectorised::<f32, _, _>(
            y,
            #[inline(always)]
            |y| {
                for (i, (sums, scale)) in sums.0.iter().zip(scales).enumerate() {
                    let y = &mut y.row(row + i)[column..column + n_columns];
                    let (whole, part) = y.as_chunks_mut::<COLUMNS>();
                    for y in whole {
                        for j in 0..COLUMNS {
                            y[j] = scale.result(sums[j], totals[j], of_columns[j]) + bias[j];
                        }
                    }
                    for (j, y) in part.iter_mut().enumerate() {
                        *y = scale.result(sums[j], totals[j], of_columns[j]) + bias[j];
                    }
                }
            },
        );
    }
}
