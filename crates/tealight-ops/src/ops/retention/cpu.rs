//! The CPU scans: one head of one example at a time, with its state in the first-level cache.

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::run;
use crate::ops::outer_product::{decay_and_add, decay_and_add_transposed, read};
use crate::ops::padding_mask;

pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) n_heads: usize,
    pub(super) len: usize,
    pub(super) n_features: usize,
    pub(super) width: usize,
}

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
        let (sizes, [_, _, value]) = (&self.sizes, operands);
        let mut output = unwritten(value.len());
        run(
            value.len() * sizes.n_features,
            output.chunks_mut(sizes.len * sizes.width).zip(self.heads(operands)),
            #[inline(always)]
            |(output, head)| {
                let mut state = State::straight(sizes, head.decay);
                let outputs = output.chunks_exact_mut(sizes.width);
                for (i, (output, row)) in outputs.zip(head.rows(sizes)).enumerate() {
                    state.step(row.key, row.value, head.is_padding(i));
                    read(output, T::ONE, row.query, &state.sum);
                }
            },
        );
        output
    }

    /// The gradients of query, key and value.
    pub(super) fn backward(&self, operands: [&[T]; 3], gradient: &[T]) -> [Vec<T>; 3] {
        let sizes = &self.sizes;
        let mut gradients = operands.map(|operand| unwritten::<T>(operand.len()));
        let [dquery, dkey, dvalue] = &mut gradients;
        let (features, values) = (sizes.len * sizes.n_features, sizes.len * sizes.width);
        let results = dkey.chunks_mut(features).zip(dvalue.chunks_mut(values));
        let results = dquery.chunks_mut(features).zip(results);
        run(
            gradient.len() * sizes.n_features,
            results.zip(self.heads(operands).zip(gradient.chunks(values))),
            #[inline(always)]
            |((dquery, (dkey, dvalue)), (head, gradient))| {
                head.query_gradient(sizes, dquery, gradient);
                head.key_gradient(sizes, (dkey, dvalue), gradient);
            },
        );
        gradients
    }

    fn heads<'a>(&'a self, [query, key, value]: [&'a [T]; 3]) -> impl Iterator<Item = Head<'a, T>> {
        let Sizes { n_heads, len, n_features, width, .. } = self.sizes;
        let keys = key.chunks(len * n_features).zip(value.chunks(len * width));
        query.chunks(len * n_features).zip(keys).enumerate().map(
            move |(index, (query, (key, value)))| {
                let padding = padding_mask::row(&self.padding, index / n_heads, len);
                Head { query, key, value, padding, decay: self.decay[index % n_heads] }
            },
        )
    }
}

/// One head of one example.
struct Head<'a, T> {
    query: &'a [T],
    key: &'a [T],
    value: &'a [T],
    padding: &'a [u8],
    decay: T,
}

/// One position of a head.
struct Row<'a, T> {
    query: &'a [T],
    key: &'a [T],
    value: &'a [T],
}

impl<'a, T: Element> Head<'a, T> {
    #[inline(always)]
    fn rows(
        &self,
        sizes: &Sizes,
    ) -> impl ExactSizeIterator<Item = Row<'a, T>> + DoubleEndedIterator + use<'a, T> {
        let features = sizes.n_features;
        let keys = self.key.chunks_exact(features).zip(self.value.chunks_exact(sizes.width));
        let rows = self.query.chunks_exact(features).zip(keys);
        rows.map(
            #[inline(always)]
            |(query, (key, value))| Row { query, key, value },
        )
    }

    #[inline(always)]
    fn is_padding(&self, j: usize) -> bool {
        padding_mask::is_padding(self.padding, j)
    }

    #[inline(always)]
    fn query_gradient(&self, sizes: &Sizes, dquery: &mut [T], gradient: &[T]) {
        let mut state = State::transposed(sizes, self.decay);
        let gradients = gradient.chunks_exact(sizes.width);
        let gradients = dquery.chunks_exact_mut(sizes.n_features).zip(gradients);
        for (i, (row, (dquery, gradient))) in self.rows(sizes).zip(gradients).enumerate() {
            state.step(row.key, row.value, self.is_padding(i));
            read(dquery, T::ONE, gradient, &state.transposed);
        }
    }

    #[inline(always)]
    fn key_gradient(&self, sizes: &Sizes, (dkey, dvalue): (&mut [T], &mut [T]), gradient: &[T]) {
        let mut state = State::both(sizes, self.decay);
        let gradients =
            dkey.chunks_exact_mut(sizes.n_features).zip(dvalue.chunks_exact_mut(sizes.width));
        let gradients = gradients.zip(gradient.chunks_exact(sizes.width));
        for (j, (row, ((dkey, dvalue), gradient))) in
            self.rows(sizes).zip(gradients).enumerate().rev()
        {
            state.step(row.query, gradient, false);
            if self.is_padding(j) {
                dkey.fill(T::ZERO);
                dvalue.fill(T::ZERO);
            } else {
                read(dkey, T::ONE, row.value, &state.transposed);
                read(dvalue, T::ONE, row.key, &state.sum);
            }
        }
    }
}

/// The decaying sum of outer products.
struct State<T> {
    /// `(n_features, width)`, or empty.
    sum: Vec<T>,
    /// `(width, n_features)`, or empty.
    transposed: Vec<T>,
    decay: Vec<T>,
}

impl<T: Element> State<T> {
    /// A state that gives vectors.
    #[inline(always)]
    fn straight(sizes: &Sizes, decay: T) -> Self {
        Self { transposed: Vec::new(), ..Self::both(sizes, decay) }
    }

    /// A state that gives features.
    #[inline(always)]
    fn transposed(sizes: &Sizes, decay: T) -> Self {
        Self { sum: Vec::new(), ..Self::both(sizes, decay) }
    }

    #[inline(always)]
    fn both(sizes: &Sizes, decay: T) -> Self {
        let zeros = || vec![T::ZERO; sizes.n_features * sizes.width];
        Self { sum: zeros(), transposed: zeros(), decay: vec![decay; sizes.n_features] }
    }

    /// Advances by one position.
    #[inline(always)]
    fn step(&mut self, feature: &[T], vector: &[T], is_padding: bool) {
        if is_padding {
            for sum in self.sum.iter_mut().chain(&mut self.transposed) {
                *sum *= self.decay[0];
            }
        } else {
            decay_and_add(&mut self.sum, &self.decay, feature, vector);
            decay_and_add_transposed(&mut self.transposed, &self.decay, feature, vector);
        }
    }
}
