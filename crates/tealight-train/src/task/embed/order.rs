//! The order of training rows.
//!
//! Rows with a text in common would be negatives of each other. [`ApartOrder`] keeps them in different steps: a row that
//! has something in common with a row of the step waits for the next one. Only a hard negative may be that of several rows,
//! because it answers none of them. Rows enter in the order of a
//! [`ShuffledOrder`], so each is used once in an epoch; those that wait at its end come first in the next. The order is a
//! function of the seed: a step is found again by drawing from the first one on, which costs no more than reading the
//! rows once.

use std::collections::{BTreeSet, VecDeque};
use std::mem;
use std::sync::{Mutex, PoisonError};

use crate::data::ShuffledOrder;

/// The rows of each step.
#[derive(Debug)]
pub(super) enum Order {
    /// Any rows together.
    Shuffled(ShuffledOrder),
    /// Rows with nothing in common.
    Apart(ApartOrder),
}

/// Steps of rows that have nothing in common.
#[derive(Debug)]
pub(super) struct ApartOrder {
    order: ShuffledOrder,
    /// By row.
    keys: Vec<Keys>,
    /// Rows of a step.
    n: usize,
    state: Mutex<State>,
}

/// What no other row of a step may have in common with a row.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    /// The anchor, the positive and the group.
    pub(super) own: Vec<usize>,
    /// Hard negatives: other rows may have them as negatives.
    pub(super) negatives: Vec<usize>,
}

/// Steps that are kept, because batches are read ahead while an earlier step is asked for again.
const N_LAST: usize = 4;

/// The place in the order.
#[derive(Debug, Default)]
struct State {
    /// The steps that have been drawn, and the rows of the last ones.
    n_steps: u64,
    last: VecDeque<Vec<usize>>,
    /// The rows that have entered.
    place: u64,
    waiting: VecDeque<usize>,
}

impl Order {
    /// The rows of batch `index`, of which a step has `n_batches` of `batch_size`.
    pub(super) fn batch(&self, index: u64, n_batches: u64, batch_size: usize) -> Vec<usize> {
        match self {
            Self::Shuffled(order) => order.examples(index * batch_size as u64, batch_size),
            Self::Apart(order) => {
                let (step, batch) = (index / n_batches, (index % n_batches) as usize);
                // A step may have fewer rows than it should: then its batches have.
                let (rows, n) = (order.step(step), n_batches as usize);
                rows[rows.len() * batch / n..rows.len() * (batch + 1) / n].to_vec()
            }
        }
    }
}

impl ApartOrder {
    /// Steps of `n` rows with these keys.
    pub(super) fn new(seed: u64, keys: Vec<Keys>, n: usize) -> Self {
        let order = ShuffledOrder::new(seed, keys.len());
        Self { order, keys, n, state: Mutex::default() }
    }

    /// The key that most rows have as their own, and the number of these rows.
    pub(super) fn most_frequent(&self) -> (usize, usize) {
        let mut counts: Vec<usize> = Vec::new();
        for &key in self.keys.iter().flat_map(|keys| &keys.own) {
            if key >= counts.len() {
                counts.resize(key + 1, 0);
            }
            counts[key] += 1;
        }
        let most = counts.iter().enumerate().max_by_key(|(_, n)| **n);
        most.map_or((0, 0), |(key, n)| (key, *n))
    }

    /// The rows of a step.
    fn step(&self, index: u64) -> Vec<usize> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if index + (state.last.len() as u64) < state.n_steps {
            *state = State::default();
        }
        while state.n_steps <= index {
            self.draw(&mut state);
        }
        let back = (state.n_steps - 1 - index) as usize;
        state.last[state.last.len() - 1 - back].clone()
    }

    /// Draws the next step.
    fn draw(&self, state: &mut State) {
        let mut rows = Vec::with_capacity(self.n);
        let (mut taken, mut as_negatives) = (BTreeSet::<usize>::new(), BTreeSet::<usize>::new());
        let mut take = |row: usize| {
            let Keys { own, negatives } = &self.keys[row];
            let is_apart = rows.len() < self.n
                && own.iter().all(|key| !taken.contains(key) && !as_negatives.contains(key))
                && negatives.iter().all(|key| !taken.contains(key));
            if is_apart {
                taken.extend(own);
                as_negatives.extend(negatives);
                rows.push(row);
            }
            (is_apart, rows.len() == self.n)
        };
        let mut is_full = false;
        for row in mem::take(&mut state.waiting) {
            let is_apart;
            (is_apart, is_full) = take(row);
            if !is_apart {
                state.waiting.push_back(row);
            }
        }
        // No more than an epoch waits, so that few texts in most rows end in smaller steps.
        while !is_full && state.waiting.len() < self.keys.len() {
            let row = self.order.examples(state.place, 1)[0];
            state.place += 1;
            let is_apart;
            (is_apart, is_full) = take(row);
            if !is_apart {
                state.waiting.push_back(row);
            }
        }
        state.last.push_back(rows);
        if state.last.len() > N_LAST {
            state.last.pop_front();
        }
        state.n_steps += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of which each has a text of its own and one that three others have, too.
    fn keys(n: usize) -> Vec<Keys> {
        (0..n).map(|row| of(&[row, n + row / 4], &[])).collect()
    }

    fn of(own: &[usize], negatives: &[usize]) -> Keys {
        Keys { own: own.to_vec(), negatives: negatives.to_vec() }
    }

    #[test]
    fn rows_share_a_negative_but_none_that_answers_a_row() {
        // Rows 0 to 3 have the negative 10, which answers row 4.
        let mut keys: Vec<Keys> = (0..4).map(|row| of(&[row], &[10])).collect();
        keys.push(of(&[4, 10], &[]));
        let order = ApartOrder::new(3, keys, 4);
        assert_eq!(order.most_frequent().1, 1);
        let steps: Vec<_> = (0..20).map(|step| order.step(step)).collect();
        assert!(steps.iter().all(|rows| rows == &[4] || !rows.contains(&4)), "{steps:?}");
        assert!(steps.iter().any(|rows| rows.len() == 4), "{steps:?}");
    }

    #[test]
    fn rows_of_a_step_have_nothing_in_common_and_each_is_used_once_an_epoch() {
        let keys = keys(60);
        let order = Order::Apart(ApartOrder::new(3, keys.clone(), 6));
        let mut used = vec![0; 60];
        for step in 0..30 {
            let batches: Vec<_> = (0..2).map(|batch| order.batch(2 * step + batch, 2, 3)).collect();
            assert!(batches.iter().all(|rows| rows.len() == 3));
            let taken: Vec<usize> =
                batches.concat().iter().flat_map(|&row| keys[row].own.clone()).collect();
            assert_eq!(taken.iter().collect::<BTreeSet<_>>().len(), taken.len());
            batches.concat().into_iter().for_each(|row| used[row] += 1);
        }
        // Three epochs; what waits at the end of the last is used in the next.
        assert_eq!(used.iter().sum::<usize>(), 180);
        assert!(used.iter().all(|n| (2..=4).contains(n)), "{used:?}");
    }

    #[test]
    fn a_step_is_found_again_in_any_order_of_calls() {
        let order = ApartOrder::new(3, keys(60), 6);
        let steps: Vec<_> = (0..25).map(|step| order.step(step)).collect();
        let again = ApartOrder::new(3, keys(60), 6);
        for step in [24, 22, 23, 3, 3, 11, 0] {
            assert_eq!(again.step(step), steps[step as usize]);
        }
    }

    #[test]
    fn texts_in_most_rows_end_in_smaller_steps_that_use_every_row() {
        let keys: Vec<Keys> = (0..10).map(|row| of(&[row.min(2)], &[])).collect();
        let order = ApartOrder::new(3, keys, 4);
        assert_eq!(order.most_frequent(), (2, 8));
        let steps: Vec<_> = (0..40).map(|step| order.step(step)).collect();
        assert!(steps.iter().all(|rows| (1..=3).contains(&rows.len())));
        assert_eq!(steps.concat().into_iter().collect::<BTreeSet<_>>().len(), 10);
    }
}
