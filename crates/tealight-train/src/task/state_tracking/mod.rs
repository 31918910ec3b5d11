//! Tracking a state: the product of all elements of a group that were read so far (Merrill et al. 2024,
//! <https://arxiv.org/abs/2404.08819>; Grazzi et al. 2025, <https://arxiv.org/abs/2411.12537>).
//!
//! ```text
//! input    x₁ x₂ x₃ …           elements of a group G, uniform over the generators
//! label    y_t = x_t · y_{t−1}    y₀ = 1: x₁ is applied first
//! ```
//!
//! Z2 is parity, Z3 counts modulo 3, S3 and S5 are permutations of three and five objects.
//!
//! **The limit** is 1: the answer follows from the input. The likeliest element at a position is right with the probability
//! that convolution on the group gives (`majority`), and whoever sees the last w symbols alone is right at the first w
//! positions and guesses like the majority behind them. So accuracy within the length of training flatters; the positions
//! behind it tell whether a state is tracked.
//!
//! `scaled` is (accuracy − 1/|G|) / (1 − 1/|G|), as Grazzi et al. report, and `tracked` the greatest length up to which
//! the accuracy at each position is at least 0.9. `scaled_beyond` is that of the positions behind the length of training.

mod config;
mod group;

use std::sync::Arc;

use tealight_ops::rng::Stream;

pub use config::{Config, Labels, Test};
pub use group::Generators;

use crate::error::Result;
use crate::task::context::TaskContext;
use crate::task::drawn::{Column, DrawnTask, Example, Reference, Scores, Source, doubling};
use crate::task::report::Predictor;
use crate::task::{TaskKind, TaskSettings};
use group::Group;

/// The accuracy at a position that counts as tracked.
const TRACKED: f64 = 0.9;

impl TaskKind for Config {
    type Task = DrawnTask;

    fn build(&self, context: &TaskContext<'_>) -> Result<DrawnTask> {
        self.validate()?;
        let group = Arc::new(self.group()?);
        let source = |seq_len| -> Arc<dyn Source> {
            let (group, labels, trained) = (group.clone(), self.labels, self.seq_len);
            let letters = group.letters(self.generators).unwrap_or_default();
            Arc::new(Tracking { group, letters, seq_len, trained, labels })
        };
        let tests = self
            .tests
            .iter()
            .map(|test| (test.name.clone(), source(test.seq_len.unwrap_or(self.seq_len))));
        DrawnTask::new(context, source(self.seq_len), tests.collect(), self.sizes())
    }
}

/// Draws the examples.
#[derive(Debug)]
struct Tracking {
    group: Arc<Group>,
    /// The elements that the symbols stand for.
    letters: Vec<usize>,
    seq_len: usize,
    /// The length of training.
    trained: usize,
    labels: Labels,
}

impl Tracking {
    /// The accuracy of the likeliest element after 0, 1, … symbols.
    fn majority(&self) -> Vec<f64> {
        let mut now = vec![0.; self.group.order()];
        now[0] = 1.;
        let mut largest = vec![1.];
        for _ in 0..self.seq_len {
            let mut next = vec![0.; now.len()];
            for &x in &self.letters {
                for (y, p) in now.iter().enumerate() {
                    next[self.group.product(x, y)] += p / self.letters.len() as f64;
                }
            }
            largest.push(next.iter().copied().fold(0., f64::max));
            now = next;
        }
        largest
    }

    /// The positions with labels, from 1.
    fn scored(&self) -> std::ops::RangeInclusive<usize> {
        match self.labels {
            Labels::Every => 1..=self.seq_len,
            Labels::Last => self.seq_len..=self.seq_len,
        }
    }

    fn scaled(&self, accuracy: f64) -> f64 {
        let chance = 1. / self.group.order() as f64;
        (accuracy - chance) / (1. - chance)
    }
}

impl Source for Tracking {
    fn kind(&self) -> &'static str {
        "state_tracking"
    }

    fn seq_len(&self) -> usize {
        self.seq_len
    }

    fn vocab_size(&self) -> usize {
        self.letters.len()
    }

    fn n_classes(&self) -> usize {
        self.group.order()
    }

    fn draw(&self, stream: Stream) -> Example {
        let letter = |at: usize| stream.below(at as u64, self.letters.len() as u64) as u32;
        let mut example = Example::new((0..self.seq_len).map(letter).collect());
        let mut state = 0;
        for at in 0..self.seq_len {
            state = self.group.product(self.letters[example.ids[at] as usize], state);
            if self.scored().contains(&(at + 1)) {
                example.label(at, state as u32, at + 1);
            }
        }
        example
    }

    fn symbol(&self, id: u32) -> String {
        let letter = self.letters.get(id as usize);
        letter.map_or(String::new(), |&element| self.group.name(element))
    }

    fn class(&self, class: u32) -> String {
        self.group.name(class as usize)
    }

    fn places(&self) -> (&'static str, Vec<[usize; 2]>) {
        ("position", doubling(32, self.seq_len))
    }

    fn columns(&self) -> &'static [Column] {
        &[
            ("accuracy", "accuracy"),
            ("scaled_accuracy", "scaled"),
            ("nll", "NLL"),
            ("tracked", "tracked"),
        ]
    }

    fn further(&self, scores: &Scores) -> Vec<(&'static str, f64)> {
        let at_each = scores.by_place(1);
        let tracked = at_each.iter().position(|&accuracy| accuracy < TRACKED);
        let tracked = tracked.unwrap_or(at_each.len());
        let mut further = vec![("scaled_accuracy", self.scaled(scores.accuracy()))];
        if self.labels == Labels::Every {
            further.push(("tracked", tracked as f64));
            // Each position has as many labels.
            if let Some(behind @ [_, ..]) = at_each.get(self.trained..) {
                let accuracy = behind.iter().sum::<f64>() / behind.len() as f64;
                further.push(("scaled_beyond", self.scaled(accuracy)));
            }
        }
        further
    }

    /// Whoever reads the last w symbols knows the first w states, and of a later one the likeliest.
    fn within_reach(&self, _examples: &[Example], reach: usize) -> Option<f64> {
        let (likeliest, at) = (self.majority(), self.scored());
        let n = (at.end() - at.start() + 1) as f64;
        Some(at.map(|t| likeliest[t.saturating_sub(reach + 1)]).sum::<f64>() / n)
    }

    fn baseline(&self) -> Predictor {
        Predictor::Majority
    }

    fn references(&self, _examples: &[Example]) -> Vec<Reference> {
        let order = self.group.order() as f64;
        let likeliest = self.majority();
        let at = self.scored();
        let n = (at.end() - at.start() + 1) as f64;
        let majority = at.map(|t| likeliest[t]).sum::<f64>() / n;
        let scores =
            |accuracy| [("accuracy", accuracy), ("scaled_accuracy", self.scaled(accuracy))];
        let mut chance = scores(1. / order).to_vec();
        chance.push(("nll", order.ln()));
        let mut limit = scores(1.).to_vec();
        limit.push(("nll", 0.));
        if self.labels == Labels::Every {
            limit.extend([("tracked", self.seq_len as f64), ("scaled_beyond", 1.)]);
        }
        vec![
            Reference::new(Predictor::Chance, "chance", chance),
            Reference::new(Predictor::Majority, "majority", scores(majority)),
            Reference::new(Predictor::Bayes, "limit", limit),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::drawn::tests::{digest_of, examples};

    fn source(group: &str, generators: Generators, seq_len: usize) -> Tracking {
        let config = Config { group: group.to_owned(), generators, seq_len, ..Config::default() };
        config.validate().unwrap();
        let group = config.group().unwrap();
        let letters = group.letters(generators).unwrap();
        Tracking {
            group: Arc::new(group),
            letters,
            seq_len,
            trained: seq_len,
            labels: Labels::Every,
        }
    }

    /// Those of an independent program, of 400 examples of 128 symbols each.
    #[test]
    fn examples_are_those_of_the_definition() {
        for (group, generators, expected) in [
            ("Z2", Generators::All, "7e5a59e1253b5d54"),
            ("Z3", Generators::Step, "b07666c353ab7365"),
            ("Z4", Generators::Step, "b45b9c41b550c694"),
            ("S3", Generators::Swaps, "038003e95e695293"),
            ("S3", Generators::All, "c28018b1c6e752d2"),
            ("S5", Generators::Swaps, "c401812b566bf621"),
            ("S5", Generators::All, "d9f5ddd02f7a6041"),
            ("A5", Generators::All, "b116acb8f4f76ccc"),
        ] {
            let source = source(group, generators, 128);
            assert_eq!(digest_of(&examples(&source, 400)), expected, "{group}");
        }
    }

    /// Over all words of a length.
    #[test]
    fn the_majority_is_that_of_all_words() {
        for (group, generators, len) in
            [("Z2", Generators::All, 5), ("Z3", Generators::Step, 6), ("S3", Generators::Swaps, 4)]
        {
            let source = source(group, generators, len);
            let n_letters = source.letters.len();
            let mut counts = vec![0_usize; source.group.order()];
            for word in 0..n_letters.pow(len as u32) {
                let mut state = 0;
                for at in 0..len {
                    let letter = word / n_letters.pow(at as u32) % n_letters;
                    state = source.group.product(source.letters[letter], state);
                }
                counts[state] += 1;
            }
            let most = *counts.iter().max().unwrap() as f64 / n_letters.pow(len as u32) as f64;
            assert!((source.majority()[len] - most).abs() < 1e-12, "{group}");
        }
        // The means over positions 1 to 32 and 33 to 128 that the definition states.
        let majority = source("S3", Generators::Swaps, 128).majority();
        let mean = |from: usize, to: usize| {
            majority[from..=to].iter().sum::<f64>() / (to - from + 1) as f64
        };
        assert!((mean(1, 32) - 0.1733).abs() < 5e-5 && (mean(33, 128) - 0.1667).abs() < 5e-5);
    }

    #[test]
    fn one_label_stands_at_the_end_if_only_the_last_one_counts() {
        let source = Tracking { labels: Labels::Last, ..source("Z2", Generators::All, 5) };
        for example in examples(&source, 20) {
            let labelled: Vec<_> = example.labelled().collect();
            let ones = example.ids.iter().sum::<u32>() as usize;
            assert_eq!((labelled[0].at, labelled[0].class, labelled.len()), (4, ones % 2, 1));
        }
        assert!(source.further(&Scores::default()).iter().all(|(name, _)| *name != "tracked"));
    }

    /// Checked on all words of a length: a reader of the last symbols can only guess the likeliest state before them.
    #[test]
    fn whoever_reads_a_window_knows_no_more_than_the_likeliest_state_before_it() {
        for (group, generators, len) in
            [("Z2", Generators::All, 6), ("Z3", Generators::Step, 6), ("S3", Generators::Swaps, 4)]
        {
            let source = source(group, generators, len);
            let n_letters = source.letters.len();
            for reach in 0..len {
                let mut right = 0;
                for t in 1..=len {
                    // How often each state follows the symbols that are read at position t.
                    let mut counts = std::collections::BTreeMap::new();
                    for word in 0..n_letters.pow(t as u32) {
                        let letter = |at: usize| word / n_letters.pow(at as u32) % n_letters;
                        let state = (0..t).fold(0, |state, at| {
                            source.group.product(source.letters[letter(at)], state)
                        });
                        let seen: Vec<usize> =
                            (t.saturating_sub(reach + 1)..t).map(letter).collect();
                        *counts
                            .entry(seen)
                            .or_insert_with(std::collections::BTreeMap::new)
                            .entry(state)
                            .or_insert(0_usize) += n_letters.pow((len - t) as u32);
                    }
                    let most = |states: &std::collections::BTreeMap<usize, usize>| {
                        states.values().copied().max().unwrap_or(0)
                    };
                    right += counts.values().map(most).sum::<usize>();
                }
                let best = right as f64 / (len * n_letters.pow(len as u32)) as f64;
                let bound = source.within_reach(&[], reach).unwrap();
                assert!((best - bound).abs() < 1e-12, "{group}, {reach}: {best} {bound}");
            }
        }
    }

    #[test]
    fn positions_behind_the_length_of_training_have_a_score_of_their_own() {
        let source = Tracking { trained: 2, ..source("Z2", Generators::All, 4) };
        let mut scores = Scores::default();
        // Right at the trained positions, and at one of two behind them.
        for example in examples(&source, 50) {
            let row = |at: usize, class: usize| {
                let answer = if at == 3 { 1 - class } else { class };
                (0..2).map(|i| f64::from(u8::from(i == answer))).collect::<Vec<f64>>()
            };
            let rows: Vec<_> = example.labelled().map(|one| row(one.at, one.class)).collect();
            scores.add(&example, &rows, &[]);
        }
        let further = source.further(&scores);
        assert!(further.contains(&("scaled_beyond", 0.)), "{further:?}");
        assert!(further.contains(&("scaled_accuracy", 0.5)), "{further:?}");
        let trained = Tracking { trained: 4, ..source };
        assert!(trained.further(&scores).iter().all(|(name, _)| *name != "scaled_beyond"));
    }

    #[test]
    fn positions_are_reported_up_to_each_power_of_two() {
        assert_eq!(source("Z2", Generators::All, 32).places().1, [[1, 32]]);
        let far = source("Z2", Generators::All, 100).places().1;
        assert_eq!(far, [[1, 32], [33, 64], [65, 100]]);
    }
}
