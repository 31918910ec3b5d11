//! The CPU loops: copies rows forward, adds rows backward.

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{block_len, run};

/// The parts of the table that threads share in the backward. Every part reads all ids, so there are few.
const PARTS: usize = 16;

pub(super) fn gather<T: Element>(table: &[T], rows: &[usize], d_model: usize) -> Vec<T> {
    let mut y = unwritten(rows.len() * d_model);
    let len = block_len(d_model);
    run::<T, _, _>(
        rows.len() * d_model,
        y.chunks_mut(len).zip(rows.chunks(len / d_model)),
        #[inline(always)]
        |(y, rows): (&mut [T], &[usize])| {
            for (y, row) in y.chunks_exact_mut(d_model).zip(rows) {
                y.copy_from_slice(&table[row * d_model..][..d_model]);
            }
        },
    );
    y
}

/// Threads share the rows of the table, so each row sums its gradients in the order of the positions. The
/// row `padding` stays zero.
pub(super) fn scatter_add<T: Element>(
    gradient: &[T],
    rows: &[usize],
    padding: Option<usize>,
    [vocab_size, d_model]: [usize; 2],
) -> Vec<T> {
    let mut dtable = vec![T::ZERO; vocab_size * d_model];
    let part_rows = vocab_size.div_ceil(PARTS);
    run::<T, _, _>(
        gradient.len(),
        dtable.chunks_mut(part_rows * d_model).enumerate(),
        #[inline(always)]
        |(part, dtable): (usize, &mut [T])| {
            let first = part * part_rows;
            for (row, g) in rows.iter().zip(gradient.chunks_exact(d_model)) {
                let Some(row) = row.checked_sub(first).filter(|&row| row < part_rows) else {
                    continue;
                };
                let sum = &mut dtable[row * d_model..][..d_model];
                for (sum, &g) in sum.iter_mut().zip(g) {
                    *sum += g;
                }
            }
        },
    );
    if let Some(row) = padding.and_then(|row| dtable.chunks_exact_mut(d_model).nth(row)) {
        row.fill(T::ZERO);
    }
    dtable
}
