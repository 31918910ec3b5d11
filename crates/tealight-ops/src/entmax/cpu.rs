//! The fused loops: a row at a time, which holds its sorted candidates before it holds the result.

use std::cmp::Ordering;

use crate::element::Element;
use crate::parallel::{all_numbers, max, sum, sum_of_pairs};
use crate::softmax::by_rows;

pub(super) fn sparsemax<T: Element>(x: &[T], width: usize) -> Vec<T> {
    by_rows(
        x,
        x,
        width,
        #[inline(always)]
        |y, x, _| entmax(y, x, T::ONE, sparsemax_threshold, |root| root),
    )
}

pub(super) fn entmax15<T: Element>(x: &[T], width: usize) -> Vec<T> {
    by_rows(
        x,
        x,
        width,
        #[inline(always)]
        |y, x, _| entmax(y, x, T::from_f64(0.5), entmax15_threshold, |root| root * root),
    )
}

pub(super) fn sparsemax_backward<T: Element>(y: &[T], gradient: &[T], width: usize) -> Vec<T> {
    backward(
        y,
        gradient,
        width,
        #[inline(always)]
        |p| if p > T::ZERO { T::ONE } else { p }, // NaN stays.
    )
}

pub(super) fn entmax15_backward<T: Element>(y: &[T], gradient: &[T], width: usize) -> Vec<T> {
    backward(y, gradient, width, T::sqrt)
}

/// s ⊙ (g − Σ s g / Σ s), where s = `root`(p).
#[inline(always)]
fn backward<T: Element>(
    y: &[T],
    gradient: &[T],
    width: usize,
    root: impl Fn(T) -> T + Send + Sync,
) -> Vec<T> {
    by_rows(
        y,
        gradient,
        width,
        #[inline(always)]
        |dx, y, g| {
            let total = sum(y, &root);
            let total = if total == T::ZERO { T::ONE } else { total };
            let mean = sum_of_pairs(y, g, |y, g| root(y) * g) / total;
            for (dx, (&y, &g)) in dx.iter_mut().zip(y.iter().zip(g)) {
                *dx = root(y) * (g - mean);
            }
        },
    )
}

/// A row: z = `scale` · (x − max x), then y = `power`([z − τ]₊).
#[inline(always)]
fn entmax<T: Element>(
    y: &mut [T],
    x: &[T],
    scale: T,
    threshold: impl Fn(&[T]) -> T,
    power: impl Fn(T) -> T,
) {
    let max = max(x);
    if !all_numbers(x) || max == -T::NEG_INFINITY {
        return y.fill(T::NAN);
    }
    let mut n = 0;
    for &x in x {
        let z = (x - max) * scale;
        // No element is above 1, therefore τ ≥ −1.
        if z > -T::ONE {
            y[n] = z;
            n += 1;
        }
    }
    if n == 0 {
        return y.fill(T::ZERO); // The row is −∞ throughout.
    }
    let candidates = &mut y[..n];
    candidates.sort_unstable_by(|a, b| b.partial_cmp(a).unwrap_or(Ordering::Equal));
    let threshold = threshold(candidates);
    for (y, &x) in y.iter_mut().zip(x) {
        let root = (x - max) * scale - threshold;
        *y = if root > T::ZERO { power(root) } else { T::ZERO };
    }
}

/// τ = (Σ z − 1) / k of the k largest, where the next is not above it (Martins and Astudillo 2016,
/// Algorithm 1: 1 + k z₍ₖ₎ > Σ z₍ⱼ₎ says the same of the last that is).
#[inline(always)]
fn sparsemax_threshold<T: Element>(sorted: &[T]) -> T {
    let (mut sum, mut threshold) = (0., f64::NEG_INFINITY);
    for (i, z) in sorted.iter().enumerate() {
        let z = z.widen();
        if z <= threshold {
            break;
        }
        sum += z;
        threshold = (sum - 1.) / (i + 1) as f64;
    }
    T::from_f64(threshold)
}

/// τ = M − √((1 − S) / ρ) of the ρ largest, where the next is not above it (Peters et al. 2019,
/// Algorithm 2). M and S, mean and sum of squared deviations, are Welford's, which do not cancel.
#[inline(always)]
fn entmax15_threshold<T: Element>(sorted: &[T]) -> T {
    let (mut mean, mut deviations, mut threshold) = (0., 0_f64, f64::NEG_INFINITY);
    for (i, z) in sorted.iter().enumerate() {
        let z = z.widen();
        if z <= threshold {
            break;
        }
        let n = (i + 1) as f64;
        let deviation = z - mean;
        mean += deviation / n;
        deviations += deviation * (z - mean);
        threshold = mean - ((1. - deviations).max(0.) / n).sqrt();
    }
    T::from_f64(threshold)
}
