//! The shuffled order of training examples, a function of the seed and the index.

use std::sync::{Arc, Mutex, PoisonError};

use tealight_ops::rng::{Purpose, Stream};

/// An endless sequence of example indices: a new random permutation of `0..n` for each epoch.
///
/// It has no state to save: a resumed run continues at its place. The permutation of the current epoch is
/// cached.
#[derive(Debug)]
pub struct ShuffledOrder {
    stream: Stream,
    n: usize,
    /// The number of the last used epoch, and its order.
    current: Mutex<Option<(u64, Arc<[usize]>)>>,
}

impl ShuffledOrder {
    /// The orders of `0..n` for `seed`.
    ///
    /// # Panics
    /// If `n` is zero.
    pub fn new(seed: u64, n: usize) -> Self {
        assert!(n > 0, "invariant: there is an example to order");
        Self { stream: Stream::new(seed, Purpose::Shuffle), n, current: Mutex::default() }
    }

    /// The examples at places `start..start + len`, which may span two epochs.
    pub fn examples(&self, start: u64, len: usize) -> Vec<usize> {
        let n = self.n as u64;
        (start..start + len as u64)
            .map(|place| self.epoch(place / n)[(place % n) as usize])
            .collect()
    }

    fn epoch(&self, number: u64) -> Arc<[usize]> {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        match &*current {
            Some((cached, order)) if *cached == number => order.clone(),
            _ => {
                let order: Arc<[usize]> = self.stream.fork(number).permutation(self.n).into();
                *current = Some((number, order.clone()));
                order
            }
        }
    }
}

/// Batches of examples of similar lengths, in the order of a [`ShuffledOrder`]: as many examples as 32 batches have are
/// sorted by length and divided, and these batches are shuffled. Examples of different epochs are sorted apart, so that a
/// batch holds an example twice only where two epochs meet, if at all. The order has no state: a resumed run continues at
/// its place.
#[derive(Debug)]
pub struct BucketedOrder {
    order: ShuffledOrder,
    stream: Stream,
    /// Of each example.
    lens: Vec<usize>,
    batch_size: usize,
    /// The number of the last used window, and its batches.
    current: Mutex<Option<(u64, Batches)>>,
}

/// The examples of each batch of a window.
type Batches = Arc<[Vec<usize>]>;

/// Batches whose examples are sorted together.
const WINDOW: usize = 32;

impl BucketedOrder {
    /// The orders of examples of these lengths for `seed`.
    ///
    /// # Panics
    /// If there is no example, or if `batch_size` is zero.
    pub fn new(seed: u64, lens: Vec<usize>, batch_size: usize) -> Self {
        assert!(batch_size > 0, "invariant: a batch has an example");
        let order = ShuffledOrder::new(seed, lens.len());
        let stream = Stream::new(seed, Purpose::Shuffle).fork_name("batches of similar lengths");
        Self { order, stream, lens, batch_size, current: Mutex::default() }
    }

    /// The examples of batch `index`.
    pub fn batch(&self, index: u64) -> Vec<usize> {
        let (window, at) = (index / WINDOW as u64, (index % WINDOW as u64) as usize);
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((cached, batches)) = &*current
            && *cached == window
        {
            return batches[at].clone();
        }
        let n = WINDOW * self.batch_size;
        let mut examples = self.order.examples(window * n as u64, n);
        let n_examples = self.lens.len();
        let n_of_first = n_examples - window as usize * n % n_examples;
        let (first, others) = examples.split_at_mut(n_of_first.min(n));
        for epoch in [first].into_iter().chain(others.chunks_mut(n_examples)) {
            epoch.sort_by_key(|&example| self.lens[example]);
        }
        let sorted: Vec<_> = examples.chunks(self.batch_size).map(<[usize]>::to_vec).collect();
        let places = self.stream.fork(window).permutation(WINDOW);
        let batches: Batches = places.into_iter().map(|place| sorted[place].clone()).collect();
        let batch = batches[at].clone();
        *current = Some((window, batches));
        batch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_have_similar_lengths_and_every_example_once_in_an_epoch() {
        let lens: Vec<usize> = (0..64).map(|example| example * 37 % 64).collect();
        let order = BucketedOrder::new(3, lens.clone(), 2);
        let batches: Vec<_> = (0..64).map(|index| order.batch(index)).collect();
        for epoch in batches.chunks(32) {
            let mut all = epoch.concat();
            all.sort_unstable();
            assert_eq!(all, (0..64).collect::<Vec<_>>());
            assert!(epoch.iter().all(|two| lens[two[0]].abs_diff(lens[two[1]]) == 1));
        }
        assert_ne!(batches[..32], batches[32..]);
        // In any order of calls.
        let again = BucketedOrder::new(3, lens, 2);
        assert_eq!(
            [40, 3].map(|index| again.batch(index)),
            [40, 3].map(|index: usize| batches[index].clone())
        );
    }

    /// Few examples make several epochs of a window; equal lengths would stand side by side.
    #[test]
    fn a_batch_of_one_epoch_repeats_no_example() {
        let order = BucketedOrder::new(3, (0..12).map(|example| example % 3).collect(), 4);
        for index in 0..96 {
            let mut batch = order.batch(index);
            batch.sort_unstable();
            batch.dedup();
            assert_eq!(batch.len(), 4, "{index}");
        }
    }

    #[test]
    fn every_epoch_holds_every_example_once_in_a_new_order() {
        let order = ShuffledOrder::new(3, 13);
        let (first, second) = (order.examples(0, 13), order.examples(13, 13));
        assert_ne!(first, second);
        for mut epoch in [first, second] {
            epoch.sort_unstable();
            assert_eq!(epoch, (0..13).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_place_holds_the_same_example_however_it_is_reached() {
        let whole = ShuffledOrder::new(3, 7).examples(0, 20);
        let late = ShuffledOrder::new(3, 7);
        assert_eq!(late.examples(11, 9), whole[11..]);
        assert_eq!(late.examples(2, 9), whole[2..11]);
    }
}
