//! The product on several threads: one task for each block of C.
//!
//! An element of C is the same sum, in the same order, in whatever block it is computed. So the
//! blocks can suit the number of threads, and the result is still the same to the last bit.

use super::block::parts;
use super::kernel::Kernel;
use super::{Product, Target};
use crate::lanes::Lanes;
use crate::threads::{self, map};

/// Below this many multiply-adds, some microseconds, handing a part to another thread may cost more
/// than it saves.
const PARALLEL_FROM: usize = 1 << 17;
/// The fewest multiply-adds of a task.
const SMALL_TASK: usize = 1 << 16;
/// Where there are many multiply-adds, both the tasks and what each of them does grow: the larger
/// a block, the less often A and B are packed; the more blocks, the less one straggler matters.
const LARGE_TASK: usize = 1 << 21;
/// The fewest elements of a block of C, if each thread has one.
const SMALL_BLOCK: usize = 1 << 16;
/// The most tasks for a thread.
const MOST_TASKS: usize = 4;

/// A product and where it goes.
pub(super) type Task<'a, T> = (Product<'a, T>, Target<'a, T>);

/// Runs all, on several threads if there is work for them.
pub(super) fn run_all<T: Lanes>(kernel: &Kernel<T>, products: Vec<Task<'_, T>>) {
    let work: usize = products.iter().map(|(product, _)| product.work()).sum();
    let n_threads = threads::count();
    if work < PARALLEL_FROM || n_threads == 1 {
        for (product, mut target) in products {
            product.run(kernel, &mut target);
        }
        return;
    }
    let elements: usize =
        products.iter().map(|(_, target)| target.c.rows() * target.c.columns()).sum();
    let n_tasks = (work / LARGE_TASK).isqrt().min(elements / SMALL_BLOCK);
    let n_tasks = (n_tasks / n_threads).clamp(1, MOST_TASKS) * n_threads;
    // A few products may be of any sizes; of many, each is a task.
    let least = if products.len() < MOST_TASKS * n_threads { n_threads } else { 1 };
    let n_each = n_tasks.div_ceil(products.len()).max(least);
    let mut tasks: Vec<_> = products
        .into_iter()
        .flat_map(|(product, target)| {
            let n_tasks = n_each.min(product.work() / SMALL_TASK).max(1);
            let tasks = product.cut(kernel.width, n_tasks, target);
            let n_tasks = tasks.len() as f64;
            tasks.into_iter().enumerate().map(move |(i, task)| (i as f64 / n_tasks, task))
        })
        .collect();
    // The upper blocks of all for the first thread, the lower ones for the last: as other loops are
    // shared out, so that each finds its rows in its own cache.
    tasks.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    map(tasks, &|(_, (product, mut target))| product.run(kernel, &mut target));
}

impl<'a, T: Lanes> Product<'a, T> {
    /// Multiply-adds.
    fn work(&self) -> usize {
        let others: usize = self.others.iter().map(|(a, _)| a.columns()).sum();
        self.a.rows() * (self.a.columns() + others) * self.b.columns()
    }

    /// About so many tasks. Their blocks of C are about square, as A is packed once per column of
    /// blocks and B once per row; where A is not packed, they are higher.
    pub(super) fn cut(
        self,
        width: usize,
        n_tasks: usize,
        target: Target<'a, T>,
    ) -> Vec<Task<'a, T>> {
        let (m, n) = (target.c.rows(), target.c.columns());
        let height = if self.a.column_stride() == 1 { 4 } else { 1 };
        let most_across = n.div_ceil(width).min(n_tasks).max(1);
        let n_across = (n_tasks * n * height).div_ceil(m.max(1)).isqrt().clamp(1, most_across);
        let n_down = n_tasks.div_ceil(n_across);
        let mut tasks = Vec::with_capacity(n_across * n_down);
        let mut below = target;
        for rows in parts(m, m.div_ceil(n_down), 1) {
            let (mut right, rest) = below.split(|matrix| matrix.split_rows(rows.len()));
            below = rest;
            for columns in parts(n, n.div_ceil(n_across), width) {
                let (block, rest) = right.split(|matrix| matrix.split_columns(columns.len()));
                right = rest;
                tasks.push((self.block(rows.clone(), columns), block));
            }
        }
        tasks
    }
}
