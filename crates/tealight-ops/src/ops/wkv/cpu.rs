//! The CPU scans: one example at a time, all channels of a position at once.

use crate::backend::buffer::unwritten;
use crate::backend::element::Element;
use crate::backend::parallel::{run, sum_in_order};
use crate::ops::linear_attention::lowest;
use crate::ops::padding_mask;

/// The settings of a scan.
pub(super) struct Scan {
    pub(super) len: usize,
    /// `(batch, len)`, 1 = padding; empty without a mask.
    pub(super) padding: Vec<u8>,
    /// `(batch, len)`, 1 where a document begins; empty without segments.
    pub(super) beginnings: Vec<u8>,
}

impl Scan {
    /// The output, of key, value, decay and bonus.
    pub(super) fn forward<T: Element>(&self, operands: [&[T]; 4]) -> Vec<T> {
        let [key, _, decay, _] = operands;
        let d_model = decay.len();
        let mut output = unwritten(key.len());
        run::<T, _, _>(
            key.len(),
            output.chunks_mut(self.len * d_model).zip(self.examples(operands)),
            #[inline(always)]
            |(output, example)| {
                let mut state = State::new(d_model);
                for (i, output) in output.chunks_exact_mut(d_model).enumerate() {
                    if example.begins(i) {
                        state.clear();
                    }
                    example.read(&state, i, output);
                    example.step(&mut state, i);
                }
            },
        );
        output
    }

    /// The gradients of key, value, decay and bonus.
    pub(super) fn backward<T: Element>(
        &self,
        operands: [&[T]; 4],
        output: &[T],
        gradient: &[T],
    ) -> [Vec<T>; 4] {
        let [key, value, decay, _] = operands;
        let (len, d_model) = (self.len * decay.len(), decay.len());
        let (mut dkey, mut dvalue) = (unwritten(key.len()), unwritten(value.len()));
        let outputs = output.chunks(len).zip(gradient.chunks(len));
        let results = dkey.chunks_mut(len).zip(dvalue.chunks_mut(len));
        let partial = run::<T, _, _>(
            key.len(),
            results.zip(self.examples(operands).zip(outputs)),
            #[inline(always)]
            |((dkey, dvalue), (example, (output, gradient)))| {
                let (normalisers, drates) = example.rate_gradient(output, gradient);
                example.key_gradient((dkey, dvalue), &normalisers, output, gradient);
                drates
            },
        );
        let mut ddecay = sum_in_order(&partial, 2 * d_model);
        let dbonus = ddecay.split_off(d_model);
        [dkey, dvalue, ddecay, dbonus]
    }

    fn examples<'a, T: Element>(
        &'a self,
        [key, value, decay, bonus]: [&'a [T]; 4],
    ) -> impl Iterator<Item = Example<'a, T>> {
        let len = self.len * decay.len();
        key.chunks(len).zip(value.chunks(len)).enumerate().map(move |(index, (key, value))| {
            let of_example = |flags| padding_mask::row(flags, index, self.len);
            let (padding, beginnings) = (of_example(&self.padding), of_example(&self.beginnings));
            Example { key, value, padding, beginnings, decay, bonus }
        })
    }
}

/// One example, with the decay and bonus of the channels.
struct Example<'a, T> {
    key: &'a [T],
    value: &'a [T],
    padding: &'a [u8],
    beginnings: &'a [u8],
    decay: &'a [T],
    bonus: &'a [T],
}

/// α and β of each channel, relative to e^max.
struct State<T> {
    max: Vec<T>,
    values: Vec<T>,
    weights: Vec<T>,
}

impl<T: Element> State<T> {
    #[inline(always)]
    fn new(d_model: usize) -> Self {
        let zeros = || vec![T::ZERO; d_model];
        Self { max: vec![lowest(); d_model], values: zeros(), weights: zeros() }
    }

    /// What a new state holds.
    #[inline(always)]
    fn clear(&mut self) {
        self.max.fill(lowest());
        self.values.fill(T::ZERO);
        self.weights.fill(T::ZERO);
    }

    #[inline(always)]
    fn channels(&self) -> impl Iterator<Item = (&T, (&T, &T))> {
        self.max.iter().zip(self.values.iter().zip(&self.weights))
    }
}

/// For each position and channel: the largest exponent, and the reciprocal of the denominator relative to it.
struct Normalisers<T> {
    shift: Vec<T>,
    scale: Vec<T>,
}

/// The factors of a state relative to e^a and of a term e^b, both relative to the larger.
#[inline(always)]
fn balance<T: Element>(a: T, b: T) -> (T, T, T) {
    let larger = if b > a { b } else { a };
    (larger, (a - larger).exp(), (b - larger).exp())
}

/// eˣ of an exponent that is at most 0 but for rounding; it is clamped to 0.
#[inline(always)]
fn at_most_one<T: Element>(x: T) -> T {
    (if x > T::ZERO { T::ZERO } else { x }).exp()
}

impl<'a, T: Element> Example<'a, T> {
    /// The keys and values of a position.
    #[inline(always)]
    fn row(&self, i: usize) -> impl Iterator<Item = (&'a T, &'a T)> + use<'a, T> {
        let channels = i * self.decay.len()..(i + 1) * self.decay.len();
        self.key[channels.clone()].iter().zip(&self.value[channels])
    }

    #[inline(always)]
    fn is_padding(&self, j: usize) -> bool {
        padding_mask::is_padding(self.padding, j)
    }

    /// Whether a document begins at position i, where the sums begin anew.
    #[inline(always)]
    fn begins(&self, i: usize) -> bool {
        self.beginnings.get(i).is_some_and(|&flag| flag != 0)
    }

    #[inline(always)]
    fn read(&self, state: &State<T>, i: usize, output: &mut [T]) {
        if self.is_padding(i) {
            for (y, (_, (&values, &weights))) in output.iter_mut().zip(state.channels()) {
                *y = if weights == T::ZERO { T::ZERO } else { values / weights };
            }
            return;
        }
        let operands = self.row(i).zip(self.bonus).zip(state.channels());
        for (y, (((&k, &v), &u), (&max, (&values, &weights)))) in output.iter_mut().zip(operands) {
            let (_, past, now) = balance(max, u + k);
            *y = (past * values + now * v) / (past * weights + now);
        }
    }

    /// Advances by one position: α ← e^(−w) α + e^k v, β ← e^(−w) β + e^k.
    #[inline(always)]
    fn step(&self, state: &mut State<T>, i: usize) {
        if self.is_padding(i) {
            for (max, &w) in state.max.iter_mut().zip(self.decay) {
                *max -= w;
            }
            return;
        }
        let channels = state.max.iter_mut().zip(state.values.iter_mut().zip(&mut state.weights));
        for ((max, (values, weights)), ((&k, &v), &w)) in channels.zip(self.row(i).zip(self.decay))
        {
            let (larger, past, now) = balance(*max - w, k);
            *values = past * *values + now * v;
            *weights = past * *weights + now;
            *max = larger;
        }
    }

    /// The normalisers of each position, and the gradients of w and u, in this order.
    ///
    /// The derivatives of α and β with respect to −w, Σ_{j<i} (i−1−j) e^(…), are states like α and β: each
    /// position adds α (or β) to them before they decay.
    #[inline(always)]
    fn rate_gradient(&self, output: &[T], gradient: &[T]) -> (Normalisers<T>, Vec<T>) {
        let d_model = self.decay.len();
        let mut normalisers =
            Normalisers { shift: unwritten(output.len()), scale: unwritten(output.len()) };
        let mut drates = vec![T::ZERO; 2 * d_model];
        let mut state = State::new(d_model);
        let mut slope = State::new(d_model);
        for i in 0..output.len() / d_model {
            let at = i * d_model..(i + 1) * d_model;
            let normaliser =
                (&mut normalisers.shift[at.clone()], &mut normalisers.scale[at.clone()]);
            let outputs = (&output[at.clone()], &gradient[at]);
            if self.begins(i) {
                state.clear();
                slope.clear();
            }
            self.read_gradient(i, (&state, &slope), normaliser, outputs, &mut drates);
            self.step_slope(&state, &mut slope, i);
            self.step(&mut state, i);
        }
        (normalisers, drates)
    }

    #[inline(always)]
    fn read_gradient(
        &self,
        i: usize,
        (state, slope): (&State<T>, &State<T>),
        (shift, scale): (&mut [T], &mut [T]),
        (output, gradient): (&[T], &[T]),
        drates: &mut [T],
    ) {
        let is_padding = self.is_padding(i);
        let (dw, du) = drates.split_at_mut(self.decay.len());
        let operands = self.row(i).zip(self.bonus).zip(output.iter().zip(gradient));
        let states = state.channels().zip(slope.channels());
        let results = shift.iter_mut().zip(scale).zip(dw.iter_mut().zip(du));
        for ((((&k, &v), &u), (&y, &g)), (((&max, (_, &weights)), (_, slopes)), results)) in
            operands.zip(states.zip(results))
        {
            let ((shift, scale), (dw, du)) = results;
            let (&slope_values, &slope_weights) = slopes;
            let own = if is_padding { lowest() } else { u + k };
            let (larger, past, now) = balance(max, own);
            // A padded position does not read itself.
            let now = if is_padding { T::ZERO } else { now };
            let total = past * weights + now;
            *shift = larger;
            *scale = if total == T::ZERO { T::ZERO } else { T::ONE / total };
            let g = g * *scale;
            *dw -= past * g * (slope_values - y * slope_weights);
            if !is_padding {
                *du += now * g * (v - y);
            }
        }
    }

    /// To be called before `step`; relative to the maximum that `step` will set.
    #[inline(always)]
    fn step_slope(&self, state: &State<T>, slope: &mut State<T>, i: usize) {
        let is_padding = self.is_padding(i);
        let slopes = slope.values.iter_mut().zip(&mut slope.weights);
        let operands = self.row(i).zip(self.decay).zip(state.channels());
        for ((slope_values, slope_weights), (((&k, _), &w), (&max, (&values, &weights)))) in
            slopes.zip(operands)
        {
            let (_, past, _) = balance(max - w, if is_padding { lowest() } else { k });
            *slope_values = past * (*slope_values + values);
            *slope_weights = past * (*slope_weights + weights);
        }
    }

    /// In reverse: the state holds Σ_{i>j} e^(−(i−1−j)w − shiftᵢ) scaleᵢ gᵢ, with wkvᵢ and without.
    #[inline(always)]
    fn key_gradient(
        &self,
        (dkey, dvalue): (&mut [T], &mut [T]),
        normalisers: &Normalisers<T>,
        output: &[T],
        gradient: &[T],
    ) {
        let d_model = self.decay.len();
        let mut state = State::new(d_model);
        for j in (0..output.len() / d_model).rev() {
            let at = j * d_model..(j + 1) * d_model;
            let (dkey, dvalue) = (&mut dkey[at.clone()], &mut dvalue[at.clone()]);
            let normaliser = (&normalisers.shift[at.clone()], &normalisers.scale[at.clone()]);
            let outputs = (&output[at.clone()], &gradient[at]);
            if self.is_padding(j) {
                dkey.fill(T::ZERO);
                dvalue.fill(T::ZERO);
            } else {
                self.row_gradient(j, &state, (dkey, dvalue), normaliser, outputs);
            }
            self.step_back(&mut state, normaliser, outputs);
            if self.begins(j) {
                state.clear();
            }
        }
    }

    #[inline(always)]
    fn row_gradient(
        &self,
        j: usize,
        state: &State<T>,
        (dkey, dvalue): (&mut [T], &mut [T]),
        (shift, scale): (&[T], &[T]),
        (output, gradient): (&[T], &[T]),
    ) {
        let operands = self.row(j).zip(self.bonus).zip(output.iter().zip(gradient));
        let normalisers = state.channels().zip(shift.iter().zip(scale));
        let results = dkey.iter_mut().zip(dvalue);
        for ((dk, dv), ((((&k, &v), &u), (&y, &g)), ((&max, sums), (&shift, &scale)))) in
            results.zip(operands.zip(normalisers))
        {
            let (&with_gradient, &with_output) = sums;
            let later = at_most_one(k + max);
            let now = at_most_one(u + k - shift) * scale * g;
            *dv = later * with_gradient + now;
            *dk = later * (v * with_gradient - with_output) + now * (v - y);
        }
    }

    #[inline(always)]
    fn step_back(
        &self,
        state: &mut State<T>,
        (shift, scale): (&[T], &[T]),
        (output, gradient): (&[T], &[T]),
    ) {
        let channels = state.max.iter_mut().zip(state.values.iter_mut().zip(&mut state.weights));
        let operands = shift.iter().zip(scale).zip(output.iter().zip(gradient)).zip(self.decay);
        for ((max, (with_gradient, with_output)), (((&shift, &scale), (&y, &g)), &w)) in
            channels.zip(operands)
        {
            let (larger, later, now) = balance(*max - w, -shift);
            let now = now * scale * g;
            *with_gradient = later * *with_gradient + now;
            *with_output = later * *with_output + now * y;
            *max = larger;
        }
    }
}
