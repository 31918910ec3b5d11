//! Gradients of a block, computed from the output and the denominators that the forward pass has saved.

use super::super::scan::{Scan, State, States, add_scaled, products};
use super::super::{Normaliser, TapLayout};
use super::{Block, Gradients, divide};
use crate::backend::element::Element;
use crate::backend::parallel::sum;
use crate::ops::reach::Reach;

impl<T: Element> Block<'_, T> {
    /// The numbers of each query that the backward pass reads, where the query's denominator is D = exp(max) · sum:
    /// −max, ⟨g, Y⟩ / sum and g / sum.
    #[inline(always)]
    pub(super) fn queries(
        &self,
        normaliser: &Normaliser<T>,
        output: &[T],
        gradient: &[T],
    ) -> States<T> {
        let (n, len, width) = (self.maps.len(), self.band.sizes.len, self.band.sizes.width);
        let mut queries = States::unwritten(len, n, width);
        for t in 0..len {
            let query = queries.at_mut(t);
            for (scale, &max) in query.scale.iter_mut().zip(self.row(&normaliser.max, t, 1)) {
                *scale = -max;
            }
            query.sums.copy_from_slice(self.row(gradient, t, width));
            divide(query.sums, self.row(&normaliser.sum, t, 1), width);
            products(query.total, query.sums, self.row(output, t, width), width);
        }
        queries
    }

    #[inline(always)]
    pub(super) fn backward(&self, queries: &States<T>) -> Gradients<T> {
        let (n, len, width) = (self.maps.len(), self.band.sizes.len, self.band.sizes.width);
        let n_taps = match self.band.layout {
            TapLayout::OfPositions => len * self.band.n_taps,
            TapLayout::OfMaps => self.band.n_taps * n,
        };
        let mut gradients = Gradients {
            key: vec![T::ZERO; len * n],
            value: vec![T::ZERO; len * n * width],
            taps: vec![T::ZERO; n_taps],
        };
        for t in 0..len {
            self.backward_of_window(queries.at(t), t, &mut gradients);
        }
        let mut scan = Scan::empty(n, width);
        for t in (0..len).rev() {
            let query = t + self.band.origin + 1;
            if query < len {
                scan.push(queries.at(query));
            }
            self.backward_of_scan(scan.state(), t, &mut gradients);
        }
        if self.band.reach == Reach::Everything {
            let mut scan = Scan::empty(n, width);
            for t in 0..len {
                if let Some(query) = t.checked_sub(self.band.after() + 1) {
                    scan.push(queries.at(query));
                }
                self.backward_of_scan(scan.state(), t, &mut gradients);
            }
        }
        gradients
    }

    /// Adds the gradients from query t to the keys and values in its window, and to the taps.
    #[inline(always)]
    fn backward_of_window(&self, query: State<'_, T>, t: usize, gradients: &mut Gradients<T>) {
        let (n, width) = (self.maps.len(), self.band.sizes.width);
        let (mut weights, mut dscores) = (vec![T::ZERO; n], vec![T::ZERO; n]);
        for other in self.band.window(t) {
            if self.is_padding(other) {
                continue;
            }
            self.scores(&mut weights, t, other);
            for (weight, &scale) in weights.iter_mut().zip(query.scale) {
                *weight = (*weight + scale).exp();
            }
            products(&mut dscores, query.sums, self.value(other), width);
            for ((d, &total), &weight) in dscores.iter_mut().zip(query.total).zip(&weights) {
                *d = (*d - total) * weight;
            }
            let dvalue = &mut gradients.value[other * n * width..(other + 1) * n * width];
            add_scaled(dvalue, &weights, query.sums, width);
            for (dkey, &d) in gradients.key[other * n..(other + 1) * n].iter_mut().zip(&dscores) {
                *dkey += d;
            }
            let tap = other + self.band.origin - t;
            match self.band.layout {
                TapLayout::OfPositions => {
                    gradients.taps[t * self.band.n_taps + tap] = sum(&dscores, |d| d);
                }
                TapLayout::OfMaps => {
                    for (dtap, &d) in gradients.taps[tap * n..].iter_mut().zip(&dscores) {
                        *dtap += d;
                    }
                }
            }
        }
    }

    /// Adds to the gradients of key and value t the terms from the sum of `queries`, whose windows do not contain t.
    #[inline(always)]
    fn backward_of_scan(&self, queries: State<'_, T>, t: usize, gradients: &mut Gradients<T>) {
        if self.is_padding(t) {
            return;
        }
        let (n, width) = (self.maps.len(), self.band.sizes.width);
        let (mut weights, mut dscores) = (vec![T::ZERO; n], vec![T::ZERO; n]);
        for ((weight, &key), &scale) in weights.iter_mut().zip(self.key(t)).zip(queries.scale) {
            *weight = (key + scale).exp();
        }
        let dvalue = &mut gradients.value[t * n * width..(t + 1) * n * width];
        add_scaled(dvalue, &weights, queries.sums, width);
        products(&mut dscores, queries.sums, self.value(t), width);
        let dkey = gradients.key[t * n..(t + 1) * n].iter_mut();
        for (((dkey, &d), &total), &weight) in dkey.zip(&dscores).zip(queries.total).zip(&weights) {
            *dkey += (d - total) * weight;
        }
    }
}
