//! The CPU loops, row by row, so that a row stays in the first-level cache.

use crate::backend::element::Element;
use crate::backend::parallel::{by_rows, finite, max, sum, sum_of_pairs};

pub(super) fn softmax<T: Element>(x: &[T], width: usize) -> Vec<T> {
    by_rows(
        x,
        x,
        width,
        #[inline(always)]
        |y, x, _| softmax_row(y, x),
    )
}

pub(crate) fn softmax_backward<T: Element>(y: &[T], gradient: &[T], width: usize) -> Vec<T> {
    by_rows(
        y,
        gradient,
        width,
        #[inline(always)]
        |dx, y, g| {
            let mean = sum_of_pairs(y, g, |y, g| y * g);
            for (dx, (&y, &g)) in dx.iter_mut().zip(y.iter().zip(g)) {
                *dx = y * (g - mean);
            }
        },
    )
}

pub(super) fn log_softmax<T: Element>(x: &[T], width: usize) -> Vec<T> {
    by_rows(
        x,
        x,
        width,
        #[inline(always)]
        |y, x, _| {
            let (shift, sum) = exponentials(y, x);
            let log_sum = sum.ln();
            for (y, &x) in y.iter_mut().zip(x) {
                *y = x - shift - log_sum;
            }
        },
    )
}

pub(super) fn log_softmax_backward<T: Element>(y: &[T], gradient: &[T], width: usize) -> Vec<T> {
    by_rows(
        y,
        gradient,
        width,
        #[inline(always)]
        |dx, y, g| {
            let total = sum(g, |g| g);
            for (dx, (&y, &g)) in dx.iter_mut().zip(y.iter().zip(g)) {
                *dx = g - y.exp() * total;
            }
        },
    )
}

/// Writes exp(x − max x) to `y`. Returns max x and the sum of `y`.
///
/// If all of `x` is −∞, it writes zeros and returns 0 and 1.
#[inline(always)]
pub(crate) fn exponentials<T: Element>(y: &mut [T], x: &[T]) -> (T, T) {
    let shift = finite(max(x));
    for (y, &x) in y.iter_mut().zip(x) {
        *y = (x - shift).exp();
    }
    let total = sum(y, |y| y);
    (shift, if total == T::ZERO { T::ONE } else { total })
}

/// Writes softmax(x) to `y`.
#[inline(always)]
pub(crate) fn softmax_row<T: Element>(y: &mut [T], x: &[T]) {
    let (_, sum) = exponentials(y, x);
    let scale = T::ONE / sum;
    for y in y {
        *y *= scale;
    }
}
