//! The CPU scan: one head of one example at a time, with its state in the first-level cache.

use super::Reads;
use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{finite, max, run, sum_of_pairs};
use crate::ops::outer_product::{decay_and_add, decay_and_add_transposed, read};
use crate::ops::padding_mask;

pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) n_heads: usize,
    pub(super) q_len: usize,
    pub(super) kv_len: usize,
    pub(super) n_features: usize,
    pub(super) width: usize,
    pub(super) reads: Reads,
}

pub(super) fn forward<T: Element>(sizes: &Sizes, operands: [&[T]; 3], padding: &[u8]) -> Vec<T> {
    let [_, _, value] = operands;
    let mut output = unwritten(sizes.batch * sizes.n_heads * sizes.q_len * sizes.width);
    run(
        value.len() * sizes.n_features,
        output.chunks_mut(sizes.q_len * sizes.width).zip(heads(sizes, operands, padding)),
        #[inline(always)]
        |(output, head)| head.forward(sizes, output),
    );
    output
}

/// The gradients of query, key and value.
pub(super) fn backward<T: Element>(
    sizes: &Sizes,
    [query, key, value]: [&[T]; 3],
    padding: &[u8],
    output: &[T],
    gradient: &[T],
) -> [Vec<T>; 3] {
    let [mut dquery, mut dkey, mut dvalue] =
        [query.len(), key.len(), value.len()].map(unwritten::<T>);
    let results = dquery.chunks_mut(sizes.q_len * sizes.n_features).zip(
        dkey.chunks_mut(sizes.kv_len * sizes.n_features)
            .zip(dvalue.chunks_mut(sizes.kv_len * sizes.width)),
    );
    let len = sizes.q_len * sizes.width;
    let outputs = output.chunks(len).zip(gradient.chunks(len));
    run(
        value.len() * sizes.n_features,
        results.zip(heads(sizes, [query, key, value], padding).zip(outputs)),
        #[inline(always)]
        |((dquery, (dkey, dvalue)), (head, (output, gradient)))| {
            let normalisers = head.query_gradient(sizes, dquery, output, gradient);
            head.key_gradient(sizes, (dkey, dvalue), gradient, &normalisers);
        },
    );
    [dquery, dkey, dvalue]
}

/// One head of one example.
struct Head<'a, T> {
    query: &'a [T],
    key: &'a [T],
    value: &'a [T],
    padding: &'a [u8],
}

fn heads<'a, T: Element>(
    sizes: &'a Sizes,
    [query, key, value]: [&'a [T]; 3],
    padding: &'a [u8],
) -> impl Iterator<Item = Head<'a, T>> {
    let queries = query.chunks(sizes.q_len * sizes.n_features);
    let keys = key.chunks(sizes.kv_len * sizes.n_features);
    let values = value.chunks(sizes.kv_len * sizes.width);
    queries.zip(keys.zip(values)).enumerate().map(|(index, (query, (key, value)))| {
        let padding = padding_mask::row(padding, index / sizes.n_heads, sizes.kv_len);
        Head { query, key, value, padding }
    })
}

/// What the key gradients need of a query: the shift cᵢ, 1/aᵢᵀz̃ᵢ (0 for a query that reads nothing), and gᵢ·outᵢ.
struct QueryNormaliser<T> {
    shift: T,
    scale: T,
    mean: T,
}

impl<T: Element> Head<'_, T> {
    #[inline(always)]
    fn forward(&self, sizes: &Sizes, output: &mut [T]) {
        let mut state = State::straight(sizes);
        self.scan(
            sizes,
            &mut state,
            #[inline(always)]
            |state, i| {
                let (_shift, scale) = state.weigh(row(self.query, i, sizes.n_features));
                let output = &mut output[i * sizes.width..(i + 1) * sizes.width];
                read(output, scale, &state.feature, &state.sum);
            },
        );
    }

    /// Calls `visit` for each query, with the state of the keys that it reads.
    #[inline(always)]
    fn scan(
        &self,
        sizes: &Sizes,
        state: &mut State<T>,
        mut visit: impl FnMut(&mut State<T>, usize),
    ) {
        match sizes.reads {
            Reads::Past => {
                for i in 0..sizes.q_len {
                    self.add_key(sizes, state, i);
                    visit(state, i);
                }
            }
            Reads::Everything => {
                for j in 0..sizes.kv_len {
                    self.add_key(sizes, state, j);
                }
                for i in 0..sizes.q_len {
                    visit(state, i);
                }
            }
        }
    }

    #[inline(always)]
    fn add_key(&self, sizes: &Sizes, state: &mut State<T>, j: usize) {
        if !padding_mask::is_padding(self.padding, j) {
            let (key, value) =
                (row(self.key, j, sizes.n_features), row(self.value, j, sizes.width));
            state.add(key, T::ZERO, value, T::ONE);
        }
    }

    /// ```text
    /// d ln φ(qᵢ)ᵣ = aᵢᵣ (S̃ᵢᵣ·gᵢ − z̃ᵢᵣ gᵢ·outᵢ) / aᵢᵀz̃ᵢ
    /// ```
    #[inline(always)]
    fn query_gradient(
        &self,
        sizes: &Sizes,
        dquery: &mut [T],
        output: &[T],
        gradient: &[T],
    ) -> Vec<QueryNormaliser<T>> {
        let mut state = State::transposed(sizes);
        let mut normalisers = Vec::with_capacity(sizes.q_len);
        self.scan(
            sizes,
            &mut state,
            #[inline(always)]
            |state, i| {
                let (shift, scale) = state.weigh(row(self.query, i, sizes.n_features));
                let (output, gradient) =
                    (row(output, i, sizes.width), row(gradient, i, sizes.width));
                let mean = sum_of_pairs(output, gradient, |y, g| y * g);
                let dquery = &mut dquery[i * sizes.n_features..(i + 1) * sizes.n_features];
                read(dquery, T::ONE, gradient, &state.transposed);
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
    fn key_gradient(
        &self,
        sizes: &Sizes,
        (dkey, dvalue): (&mut [T], &mut [T]),
        gradient: &[T],
        normalisers: &[QueryNormaliser<T>],
    ) {
        let mut state = State::both(sizes);
        let mut scaled = vec![T::ZERO; sizes.width];
        if sizes.reads == Reads::Everything {
            for (i, normaliser) in normalisers.iter().enumerate() {
                self.add_query(sizes, &mut state, (i, normaliser), gradient, &mut scaled);
            }
        }
        for j in (0..sizes.kv_len).rev() {
            if sizes.reads == Reads::Past {
                self.add_query(sizes, &mut state, (j, &normalisers[j]), gradient, &mut scaled);
            }
            let dkey = &mut dkey[j * sizes.n_features..(j + 1) * sizes.n_features];
            let dvalue = &mut dvalue[j * sizes.width..(j + 1) * sizes.width];
            if padding_mask::is_padding(self.padding, j) {
                dkey.fill(T::ZERO);
                dvalue.fill(T::ZERO);
                continue;
            }
            state.weigh_at(row(self.key, j, sizes.n_features), T::ZERO);
            read(dvalue, T::ONE, &state.feature, &state.sum);
            read(dkey, T::ONE, row(self.value, j, sizes.width), &state.transposed);
            state.finish(dkey, T::ONE, T::ONE);
        }
    }

    /// Adds the gradient of query i to the state of the reverse scan.
    #[inline(always)]
    fn add_query(
        &self,
        sizes: &Sizes,
        state: &mut State<T>,
        (i, normaliser): (usize, &QueryNormaliser<T>),
        gradient: &[T],
        scaled: &mut [T],
    ) {
        if normaliser.scale == T::ZERO {
            return;
        }
        for (scaled, &g) in scaled.iter_mut().zip(row(gradient, i, sizes.width)) {
            *scaled = g * normaliser.scale;
        }
        let query = row(self.query, i, sizes.n_features);
        state.add(query, normaliser.shift, scaled, normaliser.mean * normaliser.scale);
    }
}

#[inline(always)]
fn row<T>(x: &[T], index: usize, width: usize) -> &[T] {
    &x[index * width..(index + 1) * width]
}

/// Sums weighted by features. Each feature's sums are relative to its largest value so far.
struct State<T> {
    max: Vec<T>,
    total: Vec<T>,
    /// `(n_features, width)`, or empty.
    sum: Vec<T>,
    /// `(width, n_features)`, or empty.
    transposed: Vec<T>,
    /// The features that the last call computed, relative to their maxima.
    feature: Vec<T>,
    decay: Vec<T>,
}

impl<T: Element> State<T> {
    /// A state that gives vectors.
    #[inline(always)]
    fn straight(sizes: &Sizes) -> Self {
        Self { transposed: Vec::new(), ..Self::both(sizes) }
    }

    /// A state that gives features.
    #[inline(always)]
    fn transposed(sizes: &Sizes) -> Self {
        Self { sum: Vec::new(), ..Self::both(sizes) }
    }

    #[inline(always)]
    fn both(sizes: &Sizes) -> Self {
        let zeros = |len| vec![T::ZERO; len];
        Self {
            max: vec![lowest(); sizes.n_features],
            total: zeros(sizes.n_features),
            sum: zeros(sizes.n_features * sizes.width),
            transposed: zeros(sizes.n_features * sizes.width),
            feature: zeros(sizes.n_features),
            decay: zeros(sizes.n_features),
        }
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
        decay_and_add(&mut self.sum, &self.decay, &self.feature, vector);
        decay_and_add_transposed(&mut self.transposed, &self.decay, &self.feature, vector);
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
