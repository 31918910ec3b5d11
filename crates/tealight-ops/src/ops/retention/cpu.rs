//! The CPU scans: one head of one example at a time, with its state in the first-level cache.

use crate::backend::element::Element;
use crate::ops::heads::{Head, Sizes, row, row_mut};
use crate::ops::outer_product::{OuterSum, read};

/// The settings of a scan.
pub(super) struct Scan<T> {
    pub(super) sizes: Sizes,
    /// γ of each head.
    pub(super) decay: Vec<T>,
    /// `(batch, len)`, 1 = padding; empty without a mask.
    pub(super) padding: Vec<u8>,
}

impl<T: Element> Scan<T> {
    /// The output, of query, key and value.
    pub(super) fn forward(&self, operands: [&[T]; 3]) -> Vec<T> {
        let Sizes { q_len: len, n_features, width, .. } = self.sizes;
        self.sizes.forward(
            operands,
            &self.padding,
            #[inline(always)]
            |head, output| {
                let mut state = self.state(head, OuterSum::straight(n_features * width));
                for i in 0..len {
                    state.step(head.key(i), head.value(i), head.is_padding(i));
                    let output = row_mut(output, i, width);
                    read(output, T::ONE, head.query(i), &state.sum.straight);
                }
            },
        )
    }

    /// The gradients of query, key and value.
    pub(super) fn backward(&self, operands: [&[T]; 3], gradient: &[T]) -> [Vec<T>; 3] {
        let Sizes { q_len: len, n_features, width, .. } = self.sizes;
        self.sizes.backward(
            operands,
            &self.padding,
            [gradient],
            #[inline(always)]
            |head, [dquery, dkey, dvalue], [gradient]| {
                let mut state = self.state(head, OuterSum::transposed(n_features * width));
                for i in 0..len {
                    state.step(head.key(i), head.value(i), head.is_padding(i));
                    let dquery = row_mut(dquery, i, n_features);
                    read(dquery, T::ONE, row(gradient, i, width), &state.sum.transposed);
                }
                let mut state = self.state(head, OuterSum::zeros(n_features * width));
                for j in (0..len).rev() {
                    state.step(head.query(j), row(gradient, j, width), false);
                    let (dkey, dvalue) = (row_mut(dkey, j, n_features), row_mut(dvalue, j, width));
                    if head.is_padding(j) {
                        dkey.fill(T::ZERO);
                        dvalue.fill(T::ZERO);
                    } else {
                        read(dkey, T::ONE, head.value(j), &state.sum.transposed);
                        read(dvalue, T::ONE, head.key(j), &state.sum.straight);
                    }
                }
            },
        )
    }

    #[inline(always)]
    fn state(&self, head: &Head<'_, T>, sum: OuterSum<T>) -> State<T> {
        let decay = self.decay[head.index % self.sizes.n_heads];
        State { sum, decay: vec![decay; self.sizes.n_features] }
    }
}

/// The decaying sum of outer products.
struct State<T> {
    sum: OuterSum<T>,
    decay: Vec<T>,
}

impl<T: Element> State<T> {
    /// Advances by one position.
    #[inline(always)]
    fn step(&mut self, feature: &[T], vector: &[T], is_padding: bool) {
        if is_padding {
            for sum in self.sum.straight.iter_mut().chain(&mut self.sum.transposed) {
                *sum *= self.decay[0];
            }
        } else {
            self.sum.decay_and_add(&self.decay, feature, vector);
        }
    }
}
