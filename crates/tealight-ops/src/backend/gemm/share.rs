//! Products on several threads: one task for each block of C.
//!
//! An element of C is summed in the same order whatever block it belongs to. The blocks may thus depend on the
//! number of threads, and results are still bit-identical.

use std::ops::Range;

use super::block::parts;
use super::kernels::Kernels;
use super::{Base, Product, Target};
use crate::backend::buffer::unwritten;
use crate::backend::matrix::MatrixMut;
use crate::backend::parallel::{add_scaled, block_len, run};
use crate::backend::simd::vector::Lanes;
use crate::backend::threads::{self, map};

/// Fewer multiply-adds (some microseconds) run on one thread: waking another may cost more than it saves.
const PARALLEL_FROM: usize = 1 << 17;
/// The fewest multiply-adds of a task.
const SMALL_TASK: usize = 1 << 16;
/// The fewest elements of a block of C, if there are more blocks than threads.
const SMALL_BLOCK: usize = 1 << 16;
/// The most tasks per thread.
const MOST_TASKS: usize = 4;

/// The least depth that is summed in halves, see [`Product::is_halved`].
const DEEP: usize = 512;
/// The most products at once that are summed in halves.
const FEW: usize = 12;

/// A product and its target.
pub(super) type Task<'a, T> = (Product<'a, T>, Target<'a, T>);

/// Runs all tasks, on several threads if there is enough work.
pub(super) fn run_all<T: Lanes>(kernels: &Kernels<T>, mut tasks: Vec<Task<'_, T>>) {
    let are_few = tasks.len() <= FEW;
    let mut seconds: Vec<_> = tasks
        .iter()
        .map(|(product, Target { c, .. })| {
            let is_halved = are_few && product.is_halved();
            is_halved.then(|| unwritten(c.rows() * c.columns()))
        })
        .collect();
    let n_products = tasks.len();
    let mut parts = Vec::with_capacity(2 * n_products);
    for ((product, target), second) in tasks.iter_mut().zip(&mut seconds) {
        let (rows, columns) = (target.c.rows(), target.c.columns());
        let target = target.reborrow();
        match second {
            None => parts.push((0.0..1.0, (*product, target))),
            Some(second) => {
                let [a, b] = product.halves(kernels.for_method(product.method).depth_unit);
                let second = MatrixMut::new(second, (rows, columns));
                parts.extend([(0.0..0.5, (a, target)), (0.5..1.0, (b, second.into()))]);
            }
        }
    }
    share(kernels, n_products, parts);
    let halved = tasks.into_iter().zip(&seconds);
    add_all(halved.filter_map(|((_, Target { c, .. }), second)| Some((c, &second.as_ref()?[..]))));
}

/// Runs `parts` of `n_products` products. Each part comes with the range of its product that it covers, within 0..1.
fn share<T: Lanes>(kernels: &Kernels<T>, n_products: usize, parts: Vec<(Range<f64>, Task<'_, T>)>) {
    let work: usize = parts.iter().map(|(_, (product, _))| product.work()).sum();
    let n_threads = threads::count();
    if work < PARALLEL_FROM || n_threads == 1 {
        for (_, (product, mut target)) in parts {
            product.run(kernels, &mut target);
        }
        return;
    }
    let elements: usize =
        parts.iter().map(|(_, (_, target))| target.c.rows() * target.c.columns()).sum();
    let large_tasks = parts.iter().map(|(_, (product, _))| {
        product.work() as f64 / kernels.for_method(product.method).large_task as f64
    });
    let n_tasks = (large_tasks.sum::<f64>().sqrt() as usize).min(elements / SMALL_BLOCK);
    let n_tasks = (n_tasks / n_threads).clamp(1, MOST_TASKS) * n_threads;
    let n_each = n_tasks.div_ceil(n_products);
    // If there are few products, each is split for all threads, as their sizes may differ. If there are many,
    // each is a task of its own.
    let are_few = n_products < MOST_TASKS * n_threads;
    let n_each = if are_few { n_each.next_multiple_of(n_threads) } else { n_each };
    let mut tasks = Vec::with_capacity(n_each * n_products);
    for (part, (product, target)) in parts {
        let share = part.end - part.start;
        let n_tasks = ((n_each as f64 * share).ceil() as usize).min(product.work() / SMALL_TASK);
        let kernel = kernels.for_method(product.method);
        let cut = product.cut((kernel.width, kernel.height), n_tasks.max(1), target);
        let step = share / cut.len() as f64;
        let places = (0..).map(|i| part.start + f64::from(i) * step);
        tasks.extend(places.zip(cut));
    }
    // The first thread computes the upper blocks of all products, the last thread the lower ones. Other loops
    // divide rows in the same way, so that a thread finds its rows in its own cache.
    tasks.sort_by(|(a, _), (b, _)| a.total_cmp(b));
    map(tasks, &|(_, (product, mut target))| product.run(kernels, &mut target));
}

/// c ← c + second
fn add_all<'a, T: Lanes>(sums: impl Iterator<Item = (MatrixMut<'a, T>, &'a [T])>) {
    let mut blocks = Vec::new();
    for (c, second) in sums {
        let (rows, columns) = (c.rows(), c.columns());
        let (mut c, per_block) = (c, block_len(columns) / columns);
        for rows in parts(rows, per_block, 1) {
            let (block, rest) = c.split_rows(rows.len());
            c = rest;
            blocks.push((block, &second[rows.start * columns..rows.end * columns]));
        }
    }
    let n_elements = blocks.iter().map(|(_, second)| second.len()).sum();
    run::<T, _, _>(
        n_elements,
        blocks.into_iter(),
        #[inline(always)]
        |(mut c, second): (MatrixMut<'_, T>, &[T])| {
            let columns = c.columns();
            for (i, second) in second.chunks_exact(columns).enumerate() {
                add_scaled(c.row(i), second, T::ONE);
            }
        },
    );
}

impl<'a, T: Lanes> Product<'a, T> {
    /// The number of multiply-adds.
    fn work(&self) -> usize {
        let others: usize = self.others.iter().map(|(a, _)| a.columns()).sum();
        self.a.rows() * (self.a.columns() + others) * self.b.columns()
    }

    /// Whether the upper and the lower half of the depth are summed separately and then added. This holds for
    /// sums over many rows, as in the gradient of a weight, so that each thread reads rows that it has written.
    fn is_halved(&self) -> bool {
        let is_plain = self.others.is_empty() && self.finish.is_none();
        let over_rows = self.a.column_stride() != 1 && self.b.column_stride() == 1;
        is_plain && matches!(self.base, Base::Zero) && over_rows && self.a.columns() >= DEEP
    }

    /// The halves of the depth. The second begins at a multiple of `unit`.
    fn halves(&self, unit: usize) -> [Self; 2] {
        let (rows, depth, columns) = (0..self.a.rows(), self.a.columns(), 0..self.b.columns());
        let middle = (depth / 2).next_multiple_of(unit);
        [0..middle, middle..depth].map(|depth| Self {
            a: self.a.block(rows.clone(), depth.clone()),
            b: self.b.block(depth, columns.clone()),
            ..*self
        })
    }

    /// Splits the product into about `n_tasks` tasks. Their blocks of C are about square, because A is packed once per
    /// column of blocks and B once per row of blocks. If A is not packed, blocks are `height` times as high as wide.
    /// They begin at multiples of `width` columns.
    pub(super) fn cut(
        self,
        (width, height): (usize, usize),
        n_tasks: usize,
        target: Target<'a, T>,
    ) -> Vec<Task<'a, T>> {
        let (m, n) = (target.c.rows(), target.c.columns());
        let height = if self.a.column_stride() == 1 { height } else { 1 };
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
