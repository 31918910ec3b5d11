//! Examples, and the random numbers that they are drawn from.

use std::collections::BTreeMap;

use tealight_ops::cross_entropy::IGNORE_INDEX;
use tealight_ops::rng::{Purpose, Stream};

/// A part of the examples of a task; the parts are independent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// For training.
    Train = 0,
    /// For choosing a checkpoint, and settings.
    Validation = 1,
    /// For the report.
    Test = 2,
}

/// A sequence of symbols, with labels at some of its positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// The symbols.
    pub ids: Vec<u32>,
    /// A class for each position, or [`IGNORE_INDEX`].
    pub labels: Vec<i64>,
    /// For each label, the number by which the report groups it: a distance, or a position.
    pub(super) places: Vec<usize>,
}

/// A label of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::task) struct Labelled {
    /// The position in the example.
    pub(in crate::task) at: usize,
    pub(in crate::task) class: usize,
    /// See [`Example::places`].
    pub(in crate::task) place: usize,
}

impl Example {
    /// These symbols, without labels.
    pub(in crate::task) fn new(ids: Vec<u32>) -> Self {
        let (labels, places) = (vec![IGNORE_INDEX; ids.len()], vec![0; ids.len()]);
        Self { ids, labels, places }
    }

    /// Sets the label of the position `at`, which is grouped by `place`.
    pub(in crate::task) fn label(&mut self, at: usize, class: u32, place: usize) {
        self.labels[at] = i64::from(class);
        self.places[at] = place;
    }

    /// The labels, in their order.
    pub(in crate::task) fn labelled(&self) -> impl Iterator<Item = Labelled> {
        let labels = self.labels.iter().zip(&self.places).enumerate();
        labels.filter_map(|(at, (&label, &place))| {
            Some(Labelled { at, class: usize::try_from(label).ok()?, place })
        })
    }
}

/// The streams of the examples of a `part` of the task `kind`, at a length: that of example i is its fork i. So an example
/// is a function of seed, task, part, length and index.
pub(super) fn stream(seed: u64, kind: &str, part: Part, seq_len: usize) -> Stream {
    let root = Stream::new(seed, Purpose::Data).fork_name(kind);
    root.fork(part as u64).fork(seq_len as u64)
}

/// `k` different numbers of `0..n` in random order, all orders equally likely: the beginning of a Fisher–Yates shuffle.
pub(in crate::task) fn choose(stream: Stream, k: usize, n: usize) -> Vec<usize> {
    // Where the shuffle has put another number than i at place i.
    let mut moved: BTreeMap<usize, usize> = BTreeMap::new();
    let mut chosen = Vec::with_capacity(k);
    for i in 0..k.min(n) {
        let j = i + stream.below(i as u64, (n - i) as u64) as usize;
        let [here, there] = [i, j].map(|at| moved.get(&at).copied().unwrap_or(at));
        moved.insert(j, here);
        chosen.push(there);
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_numbers_differ_and_all_orders_are_as_likely() {
        let mut counts = BTreeMap::new();
        for i in 0..20_000 {
            let chosen = choose(Stream::new(3, Purpose::Data).fork(i), 3, 5);
            assert!(chosen[0] != chosen[1] && chosen[1] != chosen[2] && chosen[0] != chosen[2]);
            *counts.entry(chosen).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 60);
        let mean = 20_000. / 60.;
        assert!(counts.values().all(|&n| (f64::from(n) - mean).abs() < 5. * mean.sqrt()));
        assert_eq!(choose(Stream::new(3, Purpose::Data), 5, 3).len(), 3);
    }

    #[test]
    fn labels_are_told_with_their_places() {
        let mut example = Example::new(vec![7, 8, 9]);
        example.label(1, 4, 30);
        let labelled: Vec<_> = example.labelled().collect();
        assert_eq!(labelled, [Labelled { at: 1, class: 4, place: 30 }]);
        assert_eq!(example.labels, [IGNORE_INDEX, 4, IGNORE_INDEX]);
    }
}
