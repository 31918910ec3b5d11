//! The CPU loops: one row of channels at a time.

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};

pub(super) fn rotate_interleaved<T: Element>(
    x: &[T],
    direction: T,
    tables: &Tables<'_, T>,
) -> Vec<T> {
    by_rows(
        x,
        tables,
        #[inline(always)]
        |y, x, cos, sin| {
            let angles = cos.iter().zip(sin);
            let pairs = y.as_chunks_mut::<2>().0.iter_mut().zip(x.as_chunks::<2>().0);
            for ((y, &[a, b]), (&cos, &sin)) in pairs.zip(angles) {
                let sin = sin * direction;
                *y = [a * cos - b * sin, a * sin + b * cos];
            }
        },
    )
}

pub(super) fn rotate_half<T: Element>(x: &[T], direction: T, tables: &Tables<'_, T>) -> Vec<T> {
    let half = tables.half;
    by_rows(
        x,
        tables,
        #[inline(always)]
        |y, x, cos, sin| {
            let angles = cos.iter().zip(sin);
            let (y_first, y_second) = y.split_at_mut(half);
            let (x_first, x_second) = x.split_at(half);
            let pairs = y_first.iter_mut().zip(y_second).zip(x_first.iter().zip(x_second));
            for (((y_first, y_second), (&a, &b)), (&cos, &sin)) in pairs.zip(angles) {
                let sin = sin * direction;
                *y_first = a * cos - b * sin;
                *y_second = a * sin + b * cos;
            }
        },
    )
}

/// The angles of every position.
pub(super) struct Tables<'a, T> {
    /// `(len, half)`
    pub(super) cos: &'a [T],
    pub(super) sin: &'a [T],
    /// How many angles a row has.
    pub(super) half: usize,
    /// How many consecutive rows of x have the angles of one position.
    pub(super) repeated: usize,
}

/// A new buffer: `work` writes each row from that row of `x` and the angles of its position.
#[inline(always)]
fn by_rows<T: Element>(
    x: &[T],
    &Tables { cos, sin, half, repeated }: &Tables<'_, T>,
    work: impl Fn(&mut [T], &[T], &[T], &[T]) + Send + Sync,
) -> Vec<T> {
    let (head_dim, n_rows) = (2 * half, cos.len() / half * repeated);
    let mut y = unwritten(x.len());
    let len = block_len(head_dim);
    run::<T, _, _>(
        x.len(),
        y.chunks_mut(len).zip(x.chunks(len)).enumerate(),
        #[inline(always)]
        |(block, (y, x))| {
            let mut row = block * (len / head_dim) % n_rows;
            for (y, x) in y.chunks_exact_mut(head_dim).zip(x.chunks_exact(head_dim)) {
                let position = row / repeated;
                let angles = position * half..(position + 1) * half;
                work(y, x, &cos[angles.clone()], &sin[angles]);
                row = (row + 1) % n_rows;
            }
        },
    );
    y
}
