//! Numerators and denominators of a block: keys before the window, after it and inside it.

use super::super::scan::{Scan, State, StateMut, States, add_scaled};
use super::{Block, divide};
use crate::backend::element::Element;
use crate::ops::reach::Reach;

impl<T: Element> StateMut<'_, T> {
    #[inline(always)]
    fn clear(&mut self) {
        self.sums.fill(T::ZERO);
        self.total.fill(T::ZERO);
        self.scale.fill(T::ZERO);
    }

    /// Raises the scales, which are maxima, to `scores`.
    #[inline(always)]
    fn raise(&mut self, scores: &[T]) {
        for (max, &score) in self.scale.iter_mut().zip(scores) {
            *max = if score > *max { score } else { *max };
        }
    }

    /// Adds `state`, rescaled to this state's scales, which must not be smaller. `factors` is scratch memory.
    #[inline(always)]
    fn add(&mut self, factors: &mut [T], state: State<'_, T>, width: usize) {
        for ((factor, &scale), &max) in factors.iter_mut().zip(state.scale).zip(&*self.scale) {
            *factor = (scale - max).exp();
        }
        add_scaled(self.total, factors, state.total, 1);
        add_scaled(self.sums, factors, state.sums, width);
    }
}

impl<T: Element> Block<'_, T> {
    /// Per position: the maximum of the scores, the denominator relative to it, and the output.
    #[inline(always)]
    pub(super) fn forward(&self) -> States<T> {
        let (n, len, width) = (self.maps.len(), self.band.sizes.len, self.band.sizes.width);
        let mut rows = States::unwritten(len, n, width);
        let after = self.after();
        let (mut before, ones) = (Scan::empty(n, width), vec![T::ONE; n]);
        let (mut scores, mut factors) = (vec![T::ZERO; n], vec![T::ZERO; n]);
        let n_keys = (0..len).filter(|&t| !self.is_padding(t)).count();
        let mut seen = 0;
        for t in 0..len {
            seen += usize::from(!self.is_padding(t));
            let leaving = t.checked_sub(self.band.origin + 1);
            if let Some(other) = leaving.filter(|&other| !self.is_padding(other)) {
                before.push(self.key_state(other, &ones));
            }
            let mut row = rows.at_mut(t);
            row.clear();
            if (if self.band.reach == Reach::Everything { n_keys } else { seen }) == 0 {
                continue;
            }
            let (before, after) = (before.state(), after.as_ref().map(|after| after.at(t)));
            row.scale.copy_from_slice(before.scale);
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
            divide(row.sums, row.total, width);
        }
        rows
    }

    /// For each position, the sums over the keys after its window; `None` if positions read no later keys.
    #[inline(always)]
    fn after(&self) -> Option<States<T>> {
        if self.band.reach == Reach::Past {
            return None;
        }
        let (n, len, width) = (self.maps.len(), self.band.sizes.len, self.band.sizes.width);
        let mut after = States::unwritten(len, n, width);
        let (mut scan, ones) = (Scan::empty(n, width), vec![T::ONE; n]);
        for t in (0..len).rev() {
            let other = t + self.band.after() + 1;
            if other < len && !self.is_padding(other) {
                scan.push(self.key_state(other, &ones));
            }
            let (row, sum) = (after.at_mut(t), scan.state());
            row.scale.copy_from_slice(sum.scale);
            row.total.copy_from_slice(sum.total);
            row.sums.copy_from_slice(sum.sums);
        }
        Some(after)
    }

    /// A key and its value, without a weight w.
    #[inline(always)]
    fn key_state<'a>(&'a self, t: usize, ones: &'a [T]) -> State<'a, T> {
        State { scale: self.key(t), total: ones, sums: self.value(t) }
    }
}
