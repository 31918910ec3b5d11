//! What draws the examples of a task, and what is known about them.

use std::fmt;

use tealight_ops::rng::Stream;

use super::example::Example;
use super::scores::Scores;
use crate::task::report::Predictor;

/// A metric, and the heading of its column.
pub(in crate::task) type Column = (&'static str, &'static str);

/// The bits of the decoding state after that many symbols; `None` if the model keeps no state.
pub(in crate::task) type Bits<'a> = &'a dyn Fn(usize) -> Option<f64>;

/// Draws the examples of a task at one length, and knows how well they can be answered.
pub trait Source: fmt::Debug + Send + Sync {
    /// The kind of the task in TOML, which is part of the address of its random numbers.
    fn kind(&self) -> &'static str;

    /// The symbols of an example.
    fn seq_len(&self) -> usize;

    /// The number of symbols that there are.
    fn vocab_size(&self) -> usize;

    /// The number of classes that a label may be.
    fn n_classes(&self) -> usize;

    /// The example of a stream of random numbers.
    fn draw(&self, stream: Stream) -> Example;

    /// A symbol as text.
    fn symbol(&self, id: u32) -> String;

    /// A class as text.
    fn class(&self, class: u32) -> String {
        self.symbol(class)
    }

    /// What the places of labels are, as a heading, and the ranges in which they are reported.
    fn places(&self) -> (&'static str, Vec<[usize; 2]>);

    /// The metrics of the report, of [`Scores`] or of [`Self::further`].
    fn columns(&self) -> &'static [Column];

    /// Metrics beyond those of [`Scores`].
    fn further(&self, _scores: &Scores) -> Vec<(&'static str, f64)> {
        Vec::new()
    }

    /// The best possible distribution at each label of an example; none where the answer is certain.
    fn best(&self, _example: &Example) -> Vec<Vec<f64>> {
        Vec::new()
    }

    /// The greatest accuracy to expect on `examples` of whoever reads a symbol and the `reach` symbols before it; `None`: it
    /// is not known.
    fn within_reach(&self, _examples: &[Example], _reach: usize) -> Option<f64> {
        None
    }

    /// The greatest accuracy or exact match to expect of whoever keeps as many bits of what it has read; `None`: it is not
    /// known, or 1.
    fn within_state(&self, _bits: Bits<'_>) -> Option<(&'static str, f64)> {
        None
    }

    /// The baseline that says nothing of an example is learnt yet.
    fn baseline(&self) -> Predictor {
        Predictor::Chance
    }

    /// What the scores of a model on `examples` are compared with.
    fn references(&self, examples: &[Example]) -> Vec<Reference>;
}

/// The scores of a baseline, or of the limit.
#[derive(Clone, Debug)]
pub struct Reference {
    /// Whose they are.
    pub predictor: Predictor,
    /// What the report calls it.
    pub name: String,
    /// By metric.
    pub scores: Vec<(&'static str, f64)>,
}

impl Reference {
    pub(in crate::task) fn new(
        predictor: Predictor,
        name: impl Into<String>,
        scores: impl IntoIterator<Item = (&'static str, f64)>,
    ) -> Self {
        Self { predictor, name: name.into(), scores: scores.into_iter().collect() }
    }
}

/// Ranges from 1 to `last` that end at `first_end`, at twice as much, and so on.
pub(in crate::task) fn doubling(first_end: usize, last: usize) -> Vec<[usize; 2]> {
    let ends = std::iter::successors(Some(first_end), |end| end.checked_mul(2));
    let ends: Vec<usize> = ends.take_while(|&end| end < last).chain([last]).collect();
    let starts = [1].into_iter().chain(ends.iter().map(|end| end + 1));
    starts.zip(&ends).map(|(start, &end)| [start, end]).collect()
}

/// The share of the labels of `examples` that `right` says are right.
pub(in crate::task) fn share<'a>(
    examples: &'a [Example],
    right: impl Fn(&'a Example) -> usize,
) -> f64 {
    let n: usize = examples.iter().map(|example| example.labelled().count()).sum();
    examples.iter().map(right).sum::<usize>() as f64 / n.max(1) as f64
}
