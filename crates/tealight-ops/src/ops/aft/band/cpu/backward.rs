//! Gradients of a block, computed from the output and the denominators that the forward pass has saved.

use super::super::scan::{Scan, add_scaled, products};
use super::super::{Normaliser, TapLayout};
use super::{Block, Gradients, divide};
use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::sum;
use crate::ops::aft::Reach;

/// What the backward pass reads of each query, `(len, ..)`; with D = exp(max) · sum.
pub(super) struct Queries<T> {
    /// −max
    scale: Vec<T>,
    /// ⟨g, Y⟩ / sum
    total: Vec<T>,
    /// g / sum
    sums: Vec<T>,
}

impl<T: Element> Block<'_, T> {
    #[inline(always)]
    pub(super) fn queries(
        &self,
        normaliser: &Normaliser<T>,
        output: &[T],
        gradient: &[T],
    ) -> Queries<T> {
        let (n, len, width) = (self.maps.len(), self.band.sizes.len, self.band.sizes.width);
        let mut queries = Queries {
            scale: unwritten(len * n),
            total: unwritten(len * n),
            sums: unwritten(len * n * width),
        };
        for t in 0..len {
            let scale = queries.scale[t * n..(t + 1) * n].iter_mut();
            for (scale, &max) in scale.zip(self.row(&normaliser.max, t, 1)) {
                *scale = -max;
            }
            let sums = &mut queries.sums[t * n * width..(t + 1) * n * width];
            sums.copy_from_slice(self.row(gradient, t, width));
            divide(sums, self.row(&normaliser.sum, t, 1), width);
            let total = &mut queries.total[t * n..(t + 1) * n];
            products(total, sums, self.row(output, t, width), width);
        }
        queries
    }

    #[inline(always)]
    pub(super) fn backward(&self, queries: &Queries<T>) -> Gradients<T> {
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
            self.backward_of_window(queries, t, &mut gradients);
        }
        let mut scan = Scan::empty(n, width);
        for t in (0..len).rev() {
            let query = t + self.band.origin + 1;
            if query < len {
                self.push_query(&mut scan, queries, query);
            }
            self.backward_of_scan(&scan, t, &mut gradients);
        }
        if self.band.reach == Reach::Everything {
            let mut scan = Scan::empty(n, width);
            for t in 0..len {
                if let Some(query) = t.checked_sub(self.band.after() + 1) {
                    self.push_query(&mut scan, queries, query);
                }
                self.backward_of_scan(&scan, t, &mut gradients);
            }
        }
        gradients
    }

    /// Adds the gradients from query t to the keys and values in its window, and to the taps.
    #[inline(always)]
    fn backward_of_window(&self, queries: &Queries<T>, t: usize, gradients: &mut Gradients<T>) {
        let (n, width) = (self.maps.len(), self.band.sizes.width);
        let scale = &queries.scale[t * n..(t + 1) * n];
        let total = &queries.total[t * n..(t + 1) * n];
        let sums = &queries.sums[t * n * width..(t + 1) * n * width];
        let (mut weights, mut dscores) = (vec![T::ZERO; n], vec![T::ZERO; n]);
        for other in self.band.window(t) {
            if self.is_padding(other) {
                continue;
            }
            self.scores(&mut weights, t, other);
            for (weight, &scale) in weights.iter_mut().zip(scale) {
                *weight = (*weight + scale).exp();
            }
            products(&mut dscores, sums, self.value(other), width);
            for ((d, &total), &weight) in dscores.iter_mut().zip(total).zip(&weights) {
                *d = (*d - total) * weight;
            }
            let dvalue = &mut gradients.value[other * n * width..(other + 1) * n * width];
            add_scaled(dvalue, &weights, sums, width);
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

    #[inline(always)]
    fn push_query(&self, scan: &mut Scan<T>, queries: &Queries<T>, t: usize) {
        let (n, width) = (self.maps.len(), self.band.sizes.width);
        scan.push(
            &queries.scale[t * n..(t + 1) * n],
            &queries.total[t * n..(t + 1) * n],
            &queries.sums[t * n * width..(t + 1) * n * width],
        );
    }

    /// Adds to the gradients of key and value t those from the queries in `scan`, whose windows do not contain t.
    #[inline(always)]
    fn backward_of_scan(&self, scan: &Scan<T>, t: usize, gradients: &mut Gradients<T>) {
        if self.is_padding(t) {
            return;
        }
        let (n, width) = (self.maps.len(), self.band.sizes.width);
        let (mut weights, mut dscores) = (vec![T::ZERO; n], vec![T::ZERO; n]);
        for ((weight, &key), &scale) in weights.iter_mut().zip(self.key(t)).zip(&scan.scale) {
            *weight = (key + scale).exp();
        }
        let dvalue = &mut gradients.value[t * n * width..(t + 1) * n * width];
        add_scaled(dvalue, &weights, &scan.sums, width);
        products(&mut dscores, &scan.sums, self.value(t), width);
        let dkey = gradients.key[t * n..(t + 1) * n].iter_mut();
        for (((dkey, &d), &total), &weight) in dkey.zip(&dscores).zip(&scan.total).zip(&weights) {
            *dkey += (d - total) * weight;
        }
    }
}
