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

#[cfg(test)]
mod tests {
    use super::*;

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
