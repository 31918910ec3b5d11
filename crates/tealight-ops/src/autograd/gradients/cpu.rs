//! Fused loops: one pass over each gradient.

use crate::backend::element::Element;
use crate::backend::parallel::{block_len, by_blocks, run, sum};

/// Σ g², accumulated in f64.
pub(super) fn sum_of_squares<T: Element>(gradient: &[T]) -> f64 {
    let partial = run(
        gradient.len(),
        gradient.chunks(block_len(1)),
        #[inline(always)]
        |block: &[T]| sum(block, |g| g.widen() * g.widen()),
    );
    partial.into_iter().sum()
}

/// factor · g
pub(super) fn scaled<T: Element>(gradient: &[T], factor: T) -> Vec<T> {
    by_blocks(
        gradient,
        gradient,
        block_len(1),
        #[inline(always)]
        |output, gradient, _| {
            for (output, &g) in output.iter_mut().zip(gradient) {
                *output = g * factor;
            }
        },
    )
}
