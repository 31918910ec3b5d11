//! Running sums Σ exp(scaleᵢ) xᵢ that stay finite for scales of any size.

use crate::backend::element::Element;

/// exp(scale) · (total, sums), of n maps with `width` sums each; empty: scale −∞.
pub(super) struct Scan<T> {
    pub(super) scale: Vec<T>,
    pub(super) total: Vec<T>,
    pub(super) sums: Vec<T>,
    keep: Vec<T>,
    add: Vec<T>,
    width: usize,
}

impl<T: Element> Scan<T> {
    #[inline(always)]
    pub(super) fn empty(n: usize, width: usize) -> Self {
        Self {
            scale: vec![T::NEG_INFINITY; n],
            total: vec![T::ZERO; n],
            sums: vec![T::ZERO; n * width],
            keep: vec![T::ZERO; n],
            add: vec![T::ZERO; n],
            width,
        }
    }

    /// Adds exp(scale) · (total, sums). The larger of the two scales becomes the common one.
    #[inline(always)]
    pub(super) fn push(&mut self, scale: &[T], total: &[T], sums: &[T]) {
        let factors = self.keep.iter_mut().zip(&mut self.add);
        for ((own, &scale), (keep, add)) in self.scale.iter_mut().zip(scale).zip(factors) {
            let larger = if scale > *own { scale } else { *own };
            *keep = (*own - larger).exp();
            *add = (scale - larger).exp();
            *own = larger;
        }
        let factors = self.keep.iter().zip(&self.add);
        for ((own, &total), (&keep, &add)) in self.total.iter_mut().zip(total).zip(factors) {
            *own = *own * keep + add * total;
        }
        if self.width == 1 {
            let factors = self.keep.iter().zip(&self.add);
            for ((own, &x), (&keep, &add)) in self.sums.iter_mut().zip(sums).zip(factors) {
                *own = *own * keep + add * x;
            }
            return;
        }
        let factors = self.keep.iter().zip(&self.add);
        let rows = self.sums.chunks_exact_mut(self.width).zip(sums.chunks_exact(self.width));
        for ((own, sums), (&keep, &add)) in rows.zip(factors) {
            for (own, &x) in own.iter_mut().zip(sums) {
                *own = *own * keep + add * x;
            }
        }
    }
}

/// sums += factor · x, with one factor per map.
#[inline(always)]
pub(super) fn add_scaled<T: Element>(sums: &mut [T], factors: &[T], x: &[T], width: usize) {
    if width == 1 {
        for ((sum, &factor), &x) in sums.iter_mut().zip(factors).zip(x) {
            *sum += factor * x;
        }
        return;
    }
    let rows = sums.chunks_exact_mut(width).zip(x.chunks_exact(width));
    for ((sums, x), &factor) in rows.zip(factors) {
        for (sum, &x) in sums.iter_mut().zip(x) {
            *sum += factor * x;
        }
    }
}

/// ⟨a, b⟩ of each map.
#[inline(always)]
pub(super) fn products<T: Element>(products: &mut [T], a: &[T], b: &[T], width: usize) {
    if width == 1 {
        for ((product, &a), &b) in products.iter_mut().zip(a).zip(b) {
            *product = a * b;
        }
        return;
    }
    let rows = a.chunks_exact(width).zip(b.chunks_exact(width));
    for (product, (a, b)) in products.iter_mut().zip(rows) {
        *product = crate::backend::parallel::sum_of_pairs(a, b, |a, b| a * b);
    }
}
