//! The CPU scan: one head of one example at a time, with its state in the first-level cache.

use crate::backend::element::Element;
use crate::backend::parallel::{finite, max, sum_of_pairs};
use crate::ops::heads::{Head, Sizes, row, row_mut};
use crate::ops::outer_product::{OuterSum, read};
use crate::ops::reach::Reach;

/// The settings of a scan.
pub(super) struct Scan {
    pub(super) sizes: Sizes,
    pub(super) reach: Reach,
    /// `(batch, kv_len)`, 1 = padding; empty without a mask.
    pub(super) padding: Vec<u8>,
}

/// The numbers of a query that the key gradients need: the shift cᵢ, 1/aᵢᵀz̃ᵢ (0 for a query that reads nothing), and
/// gᵢ·outᵢ.
struct QueryNormaliser<T> {
    shift: T,
    scale: T,
    mean: T,
}

impl Scan {
    /// The output, of query, key and value.
    pub(super) fn forward<T: Element>(&self, operands: [&[T]; 3]) -> Vec<T> {
        let Sizes { n_features, width, .. } = self.sizes;
        self.sizes.forward(
            operands,
            &self.padding,
            #[inline(always)]
            |head, output| {
                let mut state = State::new(n_features, OuterSum::straight(n_features * width));
                self.scan(
                    head,
                    &mut state,
                    #[inline(always)]
                    |state, i| {
                        let (_shift, scale) = state.weigh(head.query(i));
                        let output = row_mut(output, i, width);
                        read(output, scale, &state.feature, &state.sum.straight);
                    },
                );
            },
        )
    }

    /// The gradients of query, key and value.
    pub(super) fn backward<T: Element>(
        &self,
        operands: [&[T]; 3],
        output: &[T],
        gradient: &[T],
    ) -> [Vec<T>; 3] {
        self.sizes.backward(
            operands,
            &self.padding,
            [output, gradient],
            #[inline(always)]
            |head, [dquery, dkey, dvalue], [output, gradient]| {
                let normalisers = self.query_gradient(head, dquery, output, gradient);
                self.key_gradient(head, (dkey, dvalue), gradient, &normalisers);
            },
        )
    }

    /// Calls `visit` for each query, with the state of the keys that it reads.
    #[inline(always)]
    fn scan<T: Element>(
        &self,
        head: &Head<'_, T>,
        state: &mut State<T>,
        mut visit: impl FnMut(&mut State<T>, usize),
    ) {
        match self.reach {
            Reach::Past => {
                for i in 0..self.sizes.q_len {
                    state.add_key(head, i);
                    visit(state, i);
                }
            }
            Reach::Everything => {
                for j in 0..self.sizes.kv_len {
                    state.add_key(head, j);
                }
                for i in 0..self.sizes.q_len {
                    visit(state, i);
                }
            }
        }
    }

    /// ```text
    /// d ln φ(qᵢ)ᵣ = aᵢᵣ (S̃ᵢᵣ·gᵢ − z̃ᵢᵣ gᵢ·outᵢ) / aᵢᵀz̃ᵢ
    /// ```
    #[inline(always)]
    fn query_gradient<T: Element>(
        &self,
        head: &Head<'_, T>,
        dquery: &mut [T],
        output: &[T],
        gradient: &[T],
    ) -> Vec<QueryNormaliser<T>> {
        let Sizes { q_len, n_features, width, .. } = self.sizes;
        let mut state = State::new(n_features, OuterSum::transposed(n_features * width));
        let mut normalisers = Vec::with_capacity(q_len);
        self.scan(
            head,
            &mut state,
            #[inline(always)]
            |state, i| {
                let (shift, scale) = state.weigh(head.query(i));
                let (output, gradient) = (row(output, i, width), row(gradient, i, width));
                let mean = sum_of_pairs(output, gradient, |y, g| y * g);
                let dquery = row_mut(dquery, i, n_features);
                read(dquery, T::ONE, gradient, &state.sum.transposed);
                state.finish(dquery, mean, scale);
                normalisers.push(QueryNormaliser { shift, scale, mean });
            },
        );
        normalisers
    }

    /// ```text
    /// Rⱼᵣ = Σ_{i≥j} e^(ln φ(qᵢ)ᵣ − cᵢ) gᵢ / aᵢᵀz̃ᵢ,   ρ likewise, with gᵢ·outᵢ for gᵢ
    /// d ln φ(kⱼ)ᵣ = φ(kⱼ)ᵣ (Rⱼᵣ·vⱼ − ρⱼᵣ),   dvⱼ = Σᵣ φ(kⱼ)ᵣ Rⱼᵣ
    /// ```
    #[inline(always)]
    fn key_gradient<T: Element>(
        &self,
        head: &Head<'_, T>,
        (dkey, dvalue): (&mut [T], &mut [T]),
        gradient: &[T],
        normalisers: &[QueryNormaliser<T>],
    ) {
        let Sizes { kv_len, n_features, width, .. } = self.sizes;
        let mut state = State::new(n_features, OuterSum::zeros(n_features * width));
        let mut scaled = vec![T::ZERO; width];
        if self.reach == Reach::Everything {
            for (i, normaliser) in normalisers.iter().enumerate() {
                state.add_query(head.query(i), row(gradient, i, width), normaliser, &mut scaled);
            }
        }
        for j in (0..kv_len).rev() {
            if self.reach == Reach::Past {
                let (gradient, normaliser) = (row(gradient, j, width), &normalisers[j]);
                state.add_query(head.query(j), gradient, normaliser, &mut scaled);
            }
            let (dkey, dvalue) = (row_mut(dkey, j, n_features), row_mut(dvalue, j, width));
            if head.is_padding(j) {
                dkey.fill(T::ZERO);
                dvalue.fill(T::ZERO);
                continue;
            }
            state.weigh_at(head.key(j), T::ZERO);
            read(dvalue, T::ONE, &state.feature, &state.sum.straight);
            read(dkey, T::ONE, head.value(j), &state.sum.transposed);
            state.finish(dkey, T::ONE, T::ONE);
        }
    }
}

/// Sums weighted by features. Each feature's sums are relative to its largest value so far.
struct State<T> {
    max: Vec<T>,
    total: Vec<T>,
    sum: OuterSum<T>,
    /// The features that the last call computed, relative to their maxima.
    feature: Vec<T>,
    decay: Vec<T>,
}

impl<T: Element> State<T> {
    #[inline(always)]
    fn new(n_features: usize, sum: OuterSum<T>) -> Self {
        let zeros = || vec![T::ZERO; n_features];
        let max = vec![lowest(); n_features];
        Self { max, total: zeros(), sum, feature: zeros(), decay: zeros() }
    }

    #[inline(always)]
    fn add_key(&mut self, head: &Head<'_, T>, j: usize) {
        if !head.is_padding(j) {
            self.add(head.key(j), T::ZERO, head.value(j), T::ONE);
        }
    }

    /// Adds the gradient of a query to the state of the reverse scan. `scaled` is scratch memory.
    #[inline(always)]
    fn add_query(
        &mut self,
        query: &[T],
        gradient: &[T],
        normaliser: &QueryNormaliser<T>,
        scaled: &mut [T],
    ) {
        let QueryNormaliser { shift, scale, mean } = *normaliser;
        if scale == T::ZERO {
            return;
        }
        for (scaled, &g) in scaled.iter_mut().zip(gradient) {
            *scaled = g * scale;
        }
        self.add(query, shift, scaled, mean * scale);
    }

    /// Adds e^(log − shift) ⊗ vector to the sum and e^(log − shift) · number to the total.
    #[inline(always)]
    fn add(&mut self, log: &[T], shift: T, vector: &[T], number: T) {
        let scales = self.feature.iter_mut().zip(&mut self.decay);
        let state = self.max.iter_mut().zip(&mut self.total);
        for ((max, total), ((feature, decay), &log)) in state.zip(scales.zip(log)) {
            let log = log - shift;
            let larger = if log > *max { log } else { *max };
            *decay = (*max - larger).exp();
            *feature = (log - larger).exp();
            *total = *total * *decay + *feature * number;
            *max = larger;
        }
        self.sum.decay_and_add(&self.decay, &self.feature, vector);
    }

    /// Sets `feature` to e^(log + max − c). Returns c and 1 / featureᵀ total, or 0 for a total of 0.
    #[inline(always)]
    fn weigh(&mut self, log: &[T]) -> (T, T) {
        for (feature, (&log, &max)) in self.feature.iter_mut().zip(log.iter().zip(&self.max)) {
            *feature = log + max;
        }
        let shift = finite(max(&self.feature));
        self.weigh_at(log, shift);
        let total = sum_of_pairs(&self.feature, &self.total, |feature, total| feature * total);
        (shift, if total == T::ZERO { T::ZERO } else { T::ONE / total })
    }

    /// Sets `feature` to e^(log + max − shift). The exponent is at most 0 but for rounding, and is clamped to 0.
    #[inline(always)]
    fn weigh_at(&mut self, log: &[T], shift: T) {
        for (feature, (&log, &max)) in self.feature.iter_mut().zip(log.iter().zip(&self.max)) {
            let exponent = log + max - shift;
            *feature = (if exponent > T::ZERO { T::ZERO } else { exponent }).exp();
        }
    }

    /// x ← scale · feature ⊙ (x − mean · total)
    #[inline(always)]
    fn finish(&self, x: &mut [T], mean: T, scale: T) {
        for (x, (&feature, &total)) in x.iter_mut().zip(self.feature.iter().zip(&self.total)) {
            *x = scale * feature * (*x - mean * total);
        }
    }
}

/// The maximum before the first key. Finite, because −∞ − (−∞) is NaN.
#[inline(always)]
pub(crate) fn lowest<T: Element>() -> T {
    T::from_f64(-1e38)
}
