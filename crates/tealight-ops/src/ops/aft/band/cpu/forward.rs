//! Numerators and denominators of a block: what lies before the window, after it and inside.

use super::super::scan::{Scan, add_scaled};
use super::{Block, divide};
use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::ops::aft::Reach;

/// `(len, ..)` of a block.
pub(super) struct Rows<T> {
    pub(super) output: Vec<T>,
    pub(super) max: Vec<T>,
    pub(super) sum: Vec<T>,
}

/// A state of a scan: exp(scale) · (total, sums).
#[derive(Clone, Copy)]
struct State<'a, T> {
    scale: &'a [T],
    total: &'a [T],
    sums: &'a [T],
}

/// One position.
struct Row<'a, T> {
    output: &'a mut [T],
    max: &'a mut [T],
    sum: &'a mut [T],
}

impl<T: Element> Row<'_, T> {
    #[inline(always)]
    fn clear(&mut self) {
        self.output.fill(T::ZERO);
        self.sum.fill(T::ZERO);
        self.max.fill(T::ZERO);
    }

    /// Raises the maxima.
    #[inline(always)]
    fn raise(&mut self, scores: &[T]) {
        for (max, &score) in self.max.iter_mut().zip(scores) {
            *max = if score > *max { score } else { *max };
        }
    }

    /// Adds the sums of `state`, rescaled to the row's maxima, to the row. The maxima must already include
    /// `state.scale`. `factors` is scratch memory.
    #[inline(always)]
    fn add(&mut self, factors: &mut [T], state: State<'_, T>, width: usize) {
        for ((factor, &scale), &max) in factors.iter_mut().zip(state.scale).zip(&*self.max) {
            *factor = (scale - max).exp();
        }
        add_scaled(self.sum, factors, state.total, 1);
        add_scaled(self.output, factors, state.sums, width);
    }
}

impl<T: Element> Block<'_, T> {
    #[inline(always)]
    pub(super) fn forward(&self) -> Rows<T> {
        let (n, len, width) = (self.maps.len(), self.band.sizes.len, self.band.sizes.width);
        let mut rows = Rows {
            output: unwritten(len * n * width),
            max: unwritten(len * n),
            sum: unwritten(len * n),
        };
        let after = self.after();
        let (mut before, ones) = (Scan::empty(n, width), vec![T::ONE; n]);
        let (mut scores, mut factors) = (vec![T::ZERO; n], vec![T::ZERO; n]);
        let n_keys = (0..len).filter(|&t| !self.is_padding(t)).count();
        let mut seen = 0;
        for t in 0..len {
            seen += usize::from(!self.is_padding(t));
            let leaving = t.checked_sub(self.band.origin + 1);
            if let Some(other) = leaving.filter(|&other| !self.is_padding(other)) {
                before.push(self.key(other), &ones, self.value(other));
            }
            let mut row = Row {
                output: &mut rows.output[t * n * width..(t + 1) * n * width],
                max: &mut rows.max[t * n..(t + 1) * n],
                sum: &mut rows.sum[t * n..(t + 1) * n],
            };
            row.clear();
            if (if self.band.reach == Reach::Everything { n_keys } else { seen }) == 0 {
                continue;
            }
            let before = State { scale: &before.scale, total: &before.total, sums: &before.sums };
            let after = after.as_ref().map(|after| after.at(t, n, width));
            row.max.copy_from_slice(before.scale);
            if let Some(after) = after {
                row.raise(after.scale);
            }
            for other in self.band.window(t) {
                if !self.is_padding(other) {
                    self.scores(&mut scores, t, other);
                    row.raise(&scores);
                }
            }
            row.add(&mut factors, before, width);
            if let Some(after) = after {
                row.add(&mut factors, after, width);
            }
            for other in self.band.window(t) {
                if !self.is_padding(other) {
                    self.scores(&mut scores, t, other);
                    let key = State { scale: &scores, total: &ones, sums: self.value(other) };
                    row.add(&mut factors, key, width);
                }
            }
            divide(row.output, row.sum, width);
        }
        rows
    }

    /// For each position, the sums over the keys after its window; `None` if positions read no later keys.
    #[inline(always)]
    fn after(&self) -> Option<After<T>> {
        if self.band.reach == Reach::Past {
            return None;
        }
        let (n, len, width) = (self.maps.len(), self.band.sizes.len, self.band.sizes.width);
        let mut after = After {
            scale: unwritten(len * n),
            total: unwritten(len * n),
            sums: unwritten(len * n * width),
        };
        let (mut scan, ones) = (Scan::empty(n, width), vec![T::ONE; n]);
        for t in (0..len).rev() {
            let other = t + self.band.after() + 1;
            if other < len && !self.is_padding(other) {
                scan.push(self.key(other), &ones, self.value(other));
            }
            after.scale[t * n..(t + 1) * n].copy_from_slice(&scan.scale);
            after.total[t * n..(t + 1) * n].copy_from_slice(&scan.total);
            after.sums[t * n * width..(t + 1) * n * width].copy_from_slice(&scan.sums);
        }
        Some(after)
    }
}

/// States of a scan, one a position.
struct After<T> {
    scale: Vec<T>,
    total: Vec<T>,
    sums: Vec<T>,
}

impl<T> After<T> {
    #[inline(always)]
    fn at(&self, t: usize, n: usize, width: usize) -> State<'_, T> {
        State {
            scale: &self.scale[t * n..(t + 1) * n],
            total: &self.total[t * n..(t + 1) * n],
            sums: &self.sums[t * n * width..(t + 1) * n * width],
        }
    }
}
