//! The CPU loops, row by row, so that a row stays in the first-level cache.

use std::cmp::Ordering;

use super::Truncation;
use crate::backend::element::Element;
use crate::backend::parallel::{all_numbers, by_rows, finite, max, sum, sum_of_pairs};
use crate::ops::softmax::softmax_row;

pub(super) fn truncated_softmax<T: Element>(
    x: &[T],
    width: usize,
    truncation: Truncation,
) -> Vec<T> {
    by_rows(
        x,
        x,
        width,
        #[inline(always)]
        |y, x, _| match truncation {
            Truncation::TopK(k) => top_k(y, x, k.min(width)),
            Truncation::Cut(threshold) => cut(y, x, T::from_f64(threshold)),
            Truncation::CutRenormalized(threshold) => {
                cut(y, x, T::from_f64(threshold));
                normalize(y);
            }
            Truncation::ScoreCut(threshold) => score_cut(y, x, T::from_f64(threshold)),
        },
    )
}

/// Recomputes the weights from the scores: the result has zeros in place of the weights that were cut.
pub(super) fn cut_backward<T: Element>(
    x: &[T],
    gradient: &[T],
    width: usize,
    threshold: T,
) -> Vec<T> {
    by_rows(
        x,
        gradient,
        width,
        #[inline(always)]
        |dx, x, g| {
            softmax_row(dx, x);
            let kept = |p, g| if p <= threshold { T::ZERO } else { g };
            let mean = sum_of_pairs(dx, g, |p, g| p * kept(p, g));
            for (dx, &g) in dx.iter_mut().zip(g) {
                *dx *= kept(*dx, g) - mean;
            }
        },
    )
}

#[inline(always)]
fn top_k<T: Element>(y: &mut [T], x: &[T], k: usize) {
    if !all_numbers(x) {
        return y.fill(T::NAN);
    }
    let (least, mut n_equal) = least_of_top_k(y, x, k);
    let shift = finite(max(x));
    for (y, &x) in y.iter_mut().zip(x) {
        let is_kept = x > least || (x == least && n_equal > 0);
        n_equal -= usize::from(is_kept && x == least);
        *y = if is_kept { (x - shift).exp() } else { T::ZERO };
    }
    normalize(y);
}

#[inline(always)]
fn cut<T: Element>(y: &mut [T], x: &[T], threshold: T) {
    softmax_row(y, x);
    for y in y {
        *y = if *y <= threshold { T::ZERO } else { *y };
    }
}

#[inline(always)]
fn score_cut<T: Element>(y: &mut [T], x: &[T], threshold: T) {
    let shift = finite(max(x));
    for (y, &x) in y.iter_mut().zip(x) {
        *y = if x <= threshold { T::ZERO } else { (x - shift).exp() };
    }
    normalize(y);
}

/// Divides a row by its sum, unless that is 0.
#[inline(always)]
fn normalize<T: Element>(y: &mut [T]) {
    let total = sum(y, |y| y);
    let scale = if total == T::ZERO { T::ONE } else { T::ONE / total };
    for y in y {
        *y *= scale;
    }
}

/// The k-th largest element, and how many elements equal to it are among the k largest.
#[inline(always)]
fn least_of_top_k<T: Element>(scratch: &mut [T], x: &[T], k: usize) -> (T, usize) {
    scratch.copy_from_slice(x);
    let descending = |a: &T, b: &T| b.partial_cmp(a).unwrap_or(Ordering::Equal);
    let least = *scratch.select_nth_unstable_by(k - 1, descending).1;
    let n_larger = sum(x, |x| if x > least { 1. } else { 0. }) as usize;
    (least, k - n_larger)
}
