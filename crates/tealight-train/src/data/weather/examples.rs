//! Training examples: a window of days and the day after it.

use super::generator::Generator;
use tealight_ops::rng::Stream;

/// `(n, window + 1)` days: each row is a window, oldest day first, and the day to forecast.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examples {
    /// The number of days in a window.
    pub window: usize,
    /// All days, `(n, window + 1)` row by row.
    pub days: Vec<u8>,
}

impl Examples {
    /// `n` independent examples; example `i` depends on `stream.fork(i)` alone.
    pub fn sample(generator: &dyn Generator, window: usize, n: usize, stream: Stream) -> Self {
        let days = (0..n as u64).flat_map(|i| generator.sample(stream.fork(i), window + 1));
        Self { window, days: days.collect() }
    }

    /// Every run of `window + 1` days in `sequences`.
    pub fn cut<S: AsRef<[u8]>>(sequences: &[S], window: usize) -> Self {
        let runs = sequences.iter().flat_map(|days| days.as_ref().windows(window + 1));
        Self { window, days: runs.flatten().copied().collect() }
    }

    /// The examples at `indices`, in this order.
    ///
    /// # Panics
    /// If an index is out of range.
    #[must_use]
    pub fn select(&self, indices: impl IntoIterator<Item = usize>) -> Self {
        let row = |i: usize| &self.days[i * (self.window + 1)..][..=self.window];
        Self { window: self.window, days: indices.into_iter().flat_map(row).copied().collect() }
    }

    /// The number of examples.
    pub fn len(&self) -> usize {
        self.days.len() / (self.window + 1)
    }

    /// Whether there is no example.
    pub fn is_empty(&self) -> bool {
        self.days.is_empty()
    }

    /// Each window with the day after it.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&[u8], u8)> {
        self.days.chunks_exact(self.window + 1).map(|row| (&row[..self.window], row[self.window]))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::generator::markov, *};
    use tealight_ops::rng::Purpose;

    #[test]
    fn an_example_depends_on_its_index_alone() {
        let generator = markov::Config::default().build().unwrap();
        let stream = Stream::new(3, Purpose::Data);
        let few = Examples::sample(&generator, 5, 7, stream);
        let many = Examples::sample(&generator, 5, 11, stream);
        assert_eq!(few.days, &many.days[..7 * 6]);
        assert_eq!((few.len(), many.len(), few.window), (7, 11, 5));
    }

    #[test]
    fn a_selection_keeps_its_order() {
        let examples = Examples::cut(&[[0, 1, 2, 2, 1]], 2);
        assert_eq!(examples.select([2, 0]).days, [2, 2, 1, 0, 1, 2]);
    }

    #[test]
    fn sequences_are_cut_at_every_day() {
        let examples = Examples::cut(&[vec![0, 1, 2, 2], vec![1, 1]], 2);
        let rows: Vec<_> = examples.iter().collect();
        assert_eq!(rows, [(&[0, 1][..], 2), (&[1, 2][..], 2)]);
        assert!(Examples::cut(&[[0, 1]], 2).is_empty());
    }
}
