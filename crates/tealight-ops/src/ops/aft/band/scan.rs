//! Running sums Σ exp(scaleᵢ) xᵢ that stay finite for scales of any size.

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;

/// exp(scale) · (total, sums), of n maps with `width` sums each. Where nothing has been added, scale is −∞.
#[derive(Clone, Copy)]
pub(super) struct State<'a, T> {
    pub(super) scale: &'a [T],
    pub(super) total: &'a [T],
    pub(super) sums: &'a [T],
}

/// A [`State`] for writing.
pub(super) struct StateMut<'a, T> {
    pub(super) scale: &'a mut [T],
    pub(super) total: &'a mut [T],
    pub(super) sums: &'a mut [T],
}

/// A state for each position: `scale` and `total (len, n)`, `sums (len, n · width)`.
pub(super) struct States<T> {
    pub(super) scale: Vec<T>,
    pub(super) total: Vec<T>,
    pub(super) sums: Vec<T>,
    n: usize,
    width: usize,
}

impl<T: Element> States<T> {
    pub(super) fn unwritten(len: usize, n: usize, width: usize) -> Self {
        let [scale, total, sums] = [len * n, len * n, len * n * width].map(unwritten);
        Self { scale, total, sums, n, width }
    }

    #[inline(always)]
    pub(super) fn at(&self, t: usize) -> State<'_, T> {
        let (maps, sums) = (t * self.n..(t + 1) * self.n, self.n * self.width);
        State {
            scale: &self.scale[maps.clone()],
            total: &self.total[maps],
            sums: &self.sums[t * sums..(t + 1) * sums],
        }
    }

    #[inline(always)]
    pub(super) fn at_mut(&mut self, t: usize) -> StateMut<'_, T> {
        let (maps, sums) = (t * self.n..(t + 1) * self.n, self.n * self.width);
        StateMut {
            scale: &mut self.scale[maps.clone()],
            total: &mut self.total[maps],
            sums: &mut self.sums[t * sums..(t + 1) * sums],
        }
    }
}

/// The state of some positions, to which further positions are added one after the other.
pub(super) struct Scan<T> {
    scale: Vec<T>,
    total: Vec<T>,
    sums: Vec<T>,
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

    #[inline(always)]
    pub(super) fn state(&self) -> State<'_, T> {
        State { scale: &self.scale, total: &self.total, sums: &self.sums }
    }

    /// Adds a state. The larger of the two scales becomes the common one.
    #[inline(always)]
    pub(super) fn push(&mut self, State { scale, total, sums }: State<'_, T>) {
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
