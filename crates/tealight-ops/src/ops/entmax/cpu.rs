//! The CPU loops, row by row. A row of the output first holds the candidates for the support, then the
//! result.

use std::cmp::Ordering;

use crate::backend::element::Element;
use crate::backend::parallel::{all_numbers, by_rows, max, sum, sum_of_pairs};

/// Passes before the remaining candidates are sorted. For scores close to each other, as at the start of
/// training, one or two are enough; sorting at once would take 40 times as long as a softmax.
const N_PASSES: usize = 6;

pub(super) fn sparsemax<T: Element>(x: &[T], width: usize) -> Vec<T> {
    entmax(x, width, T::ONE, sparsemax_threshold, |root| root)
}

pub(super) fn entmax15<T: Element>(x: &[T], width: usize) -> Vec<T> {
    entmax(x, width, T::from_f64(0.5), entmax15_threshold, |root| root * root)
}

pub(super) fn sparsemax_backward<T: Element>(y: &[T], gradient: &[T], width: usize) -> Vec<T> {
    backward(
        y,
        gradient,
        width,
        #[inline(always)]
        |p| if p > T::ZERO { T::ONE } else { p }, // NaN stays NaN.
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

/// For each row: z = `scale` · (x − max x), y = `power`([z − τ]₊).
#[inline(always)]
fn entmax<T: Element>(
    x: &[T],
    width: usize,
    scale: T,
    threshold: impl Fn(&mut [T]) -> T + Send + Sync,
    power: impl Fn(T) -> T + Send + Sync,
) -> Vec<T> {
    by_rows(
        x,
        x,
        width,
        #[inline(always)]
        |y, x, _| {
            let max = max(x);
            if !all_numbers(x) || max == -T::NEG_INFINITY {
                return y.fill(T::NAN);
            }
            if max == T::NEG_INFINITY {
                return y.fill(T::ZERO);
            }
            for (y, &x) in y.iter_mut().zip(x) {
                *y = (x - max) * scale;
            }
            // Weights are at most 1, so τ ≥ −1.
            let n = keep_above(y, -1.);
            let threshold = threshold(&mut y[..n]);
            for (y, &x) in y.iter_mut().zip(x) {
                let root = (x - max) * scale - threshold;
                *y = if root > T::ZERO { power(root) } else { T::ZERO };
            }
        },
    )
}

/// Moves the elements above `bound` to the front; returns their number.
#[inline(always)]
fn keep_above<T: Element>(z: &mut [T], bound: f64) -> usize {
    let mut n = 0;
    for i in 0..z.len() {
        z[n] = z[i]; // n ≤ i
        n += usize::from(z[i].widen() > bound);
    }
    n
}

#[inline(always)]
fn is_above<T: Element>(z: &[T], bound: f64) -> bool {
    sum(z, |z| if z.widen() > bound { 0. } else { 1. }) == 0.
}

#[inline(always)]
fn sort_descending<T: Element>(z: &mut [T]) {
    z.sort_unstable_by(|a, b| b.partial_cmp(a).unwrap_or(Ordering::Equal));
}

/// τ of the candidates, which are above −1, the largest of them 0.
///
/// For any set of n candidates that contains the support, (Σ z − 1) / n ≤ τ, so candidates not above it are
/// removed (Michelot 1986). If none is removed, the set is the support.
#[inline(always)]
fn sparsemax_threshold<T: Element>(z: &mut [T]) -> T {
    let mut n = z.len();
    for _ in 0..N_PASSES {
        let bound = (sum(&z[..n], T::widen) - 1.) / n as f64;
        if is_above(&z[..n], bound) {
            return T::from_f64(bound);
        }
        n = keep_above(&mut z[..n], bound);
    }
    sort_descending(&mut z[..n]);
    sparsemax_of_sorted(&z[..n])
}

/// τ = (Σ z − 1) / k over the k largest, with k such that the next is not above τ (Martins and Astudillo
/// 2016, Algorithm 1, whose condition is 1 + k z₍ₖ₎ > Σ z₍ⱼ₎).
#[inline(always)]
fn sparsemax_of_sorted<T: Element>(sorted: &[T]) -> T {
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

/// τ of the candidates, which are above −1, the largest of them 0.
///
/// Solves for τ on the whole set; if all of the set is above it, the set is the support. Otherwise a Newton
/// step towards ‖[z − τ]₊‖ = 1, which is convex in τ, gives a lower bound of τ.
#[inline(always)]
fn entmax15_threshold<T: Element>(z: &mut [T]) -> T {
    let (mut n, mut bound) = (z.len(), -1.);
    for _ in 0..N_PASSES {
        let len = n as f64;
        let mean = sum(&z[..n], T::widen) / len;
        let deviations = sum(&z[..n], |z| (z.widen() - mean) * (z.widen() - mean));
        let threshold = mean - ((1. - deviations) / len).sqrt(); // NaN if the set is too large
        if threshold < 0. && is_above(&z[..n], threshold) {
            return T::from_f64(threshold);
        }
        let distance = mean - bound; // above 0, as all of the set is above the bound
        let norm = (deviations + len * distance * distance).sqrt();
        bound += (norm * (norm - 1.) / (len * distance)).max(0.);
        n = keep_above(&mut z[..n], bound);
    }
    sort_descending(&mut z[..n]);
    entmax15_of_sorted(&z[..n])
}

/// τ = M − √((1 − S) / ρ) over the ρ largest, with ρ such that the next is not above τ (Peters et al. 2019,
/// Algorithm 2). M and S, the mean and the sum of squared deviations, are updated as by Welford, without
/// cancellation.
#[inline(always)]
fn entmax15_of_sorted<T: Element>(sorted: &[T]) -> T {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Stream};

    /// At spreads from 0.01 to 10, so that some rows end in the first pass, some later and some in the sort.
    #[test]
    fn passes_and_sort_find_the_same_threshold() {
        let stream = Stream::new(3, Purpose::Data);
        for row in 0..300 {
            let spread = 0.01 * 1000_f64.powf(row as f64 / 299.);
            for width in [1, 2, 7, 101, 1_009] {
                let numbers = stream.fork(row).fork(width);
                let x: Vec<f64> = (0..width).map(|i| numbers.normal(i) * spread).collect();
                let mut z: Vec<f64> = x.iter().map(|z| z - max(&x)).collect();
                let n = keep_above(&mut z, -1.);
                let mut sorted = z[..n].to_vec();
                sort_descending(&mut sorted);
                let expected = [sparsemax_of_sorted(&sorted), entmax15_of_sorted(&sorted)];
                let actual = [
                    sparsemax_threshold(&mut z[..n].to_vec()),
                    entmax15_threshold(&mut z[..n].to_vec()),
                ];
                for (a, e) in actual.into_iter().zip(expected) {
                    assert!((a - e).abs() < 1e-12, "{width} of spread {spread}: {a} is not {e}");
                }
            }
        }
    }
}
