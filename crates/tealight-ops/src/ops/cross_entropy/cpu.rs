//! The CPU loops. The losses of the rows are summed in f64, in their order.

use crate::backend::element::Element;
use crate::backend::parallel::{
    block_len, by_blocks, by_rows, finite, max, run, sum, sum_of_pairs,
};
use crate::ops::softmax::exponentials;

pub(super) fn loss<T: Element>(
    logits: &[T],
    classes: &[Option<usize>],
    n_classes: usize,
    label_smoothing: f64,
) -> f64 {
    sum_of_rows(
        (logits, n_classes),
        (classes, 1),
        #[inline(always)]
        |row, class| class[0].map_or(0., |class| row_loss(row, class, label_smoothing)),
    )
}

pub(super) fn hits<T: Element>(logits: &[T], classes: &[Option<usize>], n_classes: usize) -> usize {
    let hits = sum_of_rows(
        (logits, n_classes),
        (classes, 1),
        #[inline(always)]
        |row, class| {
            let is_hit = class[0].is_some_and(|class| is_first_largest(row, class, max(row)));
            f64::from(u8::from(is_hit))
        },
    );
    hits as usize
}

pub(super) fn soft_loss<T: Element>(logits: &[T], targets: &[T], n_classes: usize) -> f64 {
    sum_of_rows(
        (logits, n_classes),
        (targets, n_classes),
        #[inline(always)]
        |row, targets| soft_row_loss(row, targets),
    )
}

#[inline(always)]
fn is_first_largest<T: Element>(row: &[T], class: usize, most: T) -> bool {
    row[class] == most && !row[..class].contains(&most)
}

/// Σ f(row, targets of the row). The rows have `n_classes` elements of `logits` and `per_row` elements of `targets`.
#[inline(always)]
fn sum_of_rows<T: Element, U: Sync>(
    (logits, n_classes): (&[T], usize),
    (targets, per_row): (&[U], usize),
    f: impl Fn(&[T], &[U]) -> f64 + Sync + Send,
) -> f64 {
    let len = block_len(n_classes);
    let partial = run::<T, _, _>(
        logits.len(),
        logits.chunks(len).zip(targets.chunks(len / n_classes * per_row)),
        #[inline(always)]
        |(logits, targets)| {
            let mut total = 0.;
            let rows = logits.chunks_exact(n_classes).zip(targets.chunks_exact(per_row));
            for (row, targets) in rows {
                total += f(row, targets);
            }
            total
        },
    );
    partial.into_iter().sum()
}

#[inline(always)]
fn row_loss<T: Element>(row: &[T], class: usize, label_smoothing: f64) -> f64 {
    let (shift, log_sum) = log_sum(row);
    let of_label = log_sum - (row[class] - shift).widen();
    if label_smoothing == 0. {
        // Separate, because 0 · ∞ would be NaN, and to save a pass.
        return of_label;
    }
    let mean = log_sum - sum(row, |x| x - shift).widen() / row.len() as f64;
    (1. - label_smoothing) * of_label + label_smoothing * mean
}

/// The loss of a row of logits, and whether its class has the first largest logit. If `is_differentiated`,
/// the row is overwritten with its gradient.
#[inline(always)]
pub(crate) fn row_loss_and_gradient<T: Element>(
    row: &mut [T],
    class: usize,
    label_smoothing: f64,
    is_differentiated: bool,
) -> (f64, bool) {
    let most = max(row);
    let is_hit = is_first_largest(row, class, most);
    if !is_differentiated {
        return (row_loss(row, class, label_smoothing), is_hit);
    }
    let (n_classes, shift) = (row.len() as f64, finite(most));
    let label = (row[class] - shift).widen();
    let mean = if label_smoothing == 0. {
        0.
    } else {
        label_smoothing * sum(row, |x| x - shift).widen() / n_classes
    };
    for x in row.iter_mut() {
        *x = (*x - shift).exp();
    }
    let total = sum(row, |x| x);
    let total = if total == T::ZERO { T::ONE } else { total };
    let (scale, everywhere) = (T::ONE / total, T::from_f64(label_smoothing / n_classes));
    for x in row.iter_mut() {
        *x = *x * scale - everywhere;
    }
    row[class] -= T::from_f64(1. - label_smoothing);
    let of_label = if label_smoothing == 1. { 0. } else { (1. - label_smoothing) * label };
    (total.widen().ln() - of_label - mean, is_hit)
}

/// max x and ln Σ exp(x − max x); 0 and 0 for a row of −∞ alone.
#[inline(always)]
fn log_sum<T: Element>(row: &[T]) -> (T, f64) {
    let max = max(row);
    if max == T::NEG_INFINITY && row.iter().all(|&x| x == T::NEG_INFINITY) {
        return (T::ZERO, 0.);
    }
    (max, sum(row, |x| (x - max).exp()).widen().ln())
}

pub(super) fn gradient<T: Element>(
    logits: &[T],
    classes: &[Option<usize>],
    n_classes: usize,
    label_smoothing: f64,
    factor: T,
) -> Vec<T> {
    let len = block_len(n_classes);
    let everywhere = factor * T::from_f64(label_smoothing / n_classes as f64);
    let at_label = factor * T::from_f64(1. - label_smoothing);
    by_blocks(
        (logits, len),
        (classes, len / n_classes),
        #[inline(always)]
        |dlogits, logits, classes| {
            let rows = dlogits.chunks_exact_mut(n_classes).zip(logits.chunks_exact(n_classes));
            for ((d, row), &class) in rows.zip(classes) {
                let Some(class) = class else {
                    d.fill(T::ZERO);
                    continue;
                };
                let (_, sum) = exponentials(d, row);
                let scale = factor / sum;
                for d in d.iter_mut() {
                    *d = *d * scale - everywhere;
                }
                d[class] -= at_label;
            }
        },
    )
}

/// Σ q (log Σ exp − x) in one pass, with 0 · ∞ = 0.
#[inline(always)]
fn soft_row_loss<T: Element>(row: &[T], targets: &[T]) -> f64 {
    let (shift, log_sum) = log_sum(row);
    let log_sum = T::from_f64(log_sum);
    let weighted = |x, q| if q == T::ZERO { T::ZERO } else { q * (log_sum - (x - shift)) };
    sum_of_pairs(row, targets, weighted).widen()
}

pub(super) fn soft_gradient<T: Element>(
    logits: &[T],
    targets: &[T],
    n_classes: usize,
    factor: T,
) -> Vec<T> {
    by_rows(
        logits,
        targets,
        n_classes,
        #[inline(always)]
        |d, row, targets| {
            let (_, total) = exponentials(d, row);
            let scale = factor * sum(targets, |q| q) / total;
            for (d, &q) in d.iter_mut().zip(targets) {
                *d = *d * scale - factor * q;
            }
        },
    )
}
