//! Multi-query associative recall (Arora et al. 2023, <https://arxiv.org/abs/2312.04927>): which value stood behind a key?
//!
//! ```text
//! input   k3 v7 k1 v2 | . . k1 . k3 . . .        k: keys, v: values, '.': fillers
//! label                     v2   v7              only where a key is asked for
//! ```
//!
//! The pairs come first. Some of the slots behind them repeat a key. The label at the last symbol of that key is the first
//! symbol of its value, and the model is given each symbol of the value after it was asked for it. All keys of an example
//! differ; values are independent.
//!
//! **The limit** is 1: the answer stands in the input. Without binding values to keys the best answer is the most frequent
//! value of the example (`unbound`). A state of b bits behind the context answers N questions on V values with an accuracy
//! p of at most that with N (log₂ V − h(1 − p) − (1 − p) log₂(V − 1)) = b.
//!
//! Unlike in the authors' generator (HazyResearch/zoology), fillers have symbols of their own, so that none repeats a key
//! with another value behind it; values do not differ from each other, so that none can be told by elimination; and all
//! numbers come from the stream of the example.

mod config;

use std::sync::Arc;

use tealight_ops::rng::Stream;

pub use config::{Config, Gap, Test};

use crate::error::Result;
use crate::task::context::TaskContext;
use crate::task::drawn::{
    self, Bits, Column, DrawnTask, Example, Reference, Source, accuracy_of_bits, share,
};
use crate::task::report::Predictor;
use crate::task::{TaskKind, TaskSettings};

impl TaskKind for Config {
    type Task = DrawnTask;

    fn build(&self, context: &TaskContext<'_>) -> Result<DrawnTask> {
        self.validate()?;
        let tests = self.tests.iter().map(|test| {
            (test.name.clone(), Arc::new(Recall(self.for_test(test))) as Arc<dyn Source>)
        });
        let source = Arc::new(Recall(Self { tests: Vec::new(), ..self.clone() }));
        DrawnTask::new(context, source, tests.collect(), self.sizes())
    }
}

/// Draws the examples.
#[derive(Debug)]
struct Recall(Config);

/// A filler where there is no noise.
const BLANK: u32 = 0;

impl Recall {
    /// Key `key` as symbols.
    fn key(&self, key: usize) -> Vec<u32> {
        let Config { n_keys, key_len, .. } = self.0;
        let digit = |place: usize| 1 + (key / n_keys.pow(place as u32) % n_keys) as u32;
        (0..key_len).rev().map(digit).collect()
    }

    /// The slots in which the keys are asked for.
    fn slots(&self, stream: Stream, n: usize, n_slots: usize) -> Vec<usize> {
        if self.0.gap == Gap::Uniform {
            return drawn::choose(stream, n, n_slots);
        }
        let weight = |slot: usize| (slot as f64 + 1.).powf(self.0.gap_exponent - 1.);
        let mut weights: Vec<f64> = (0..n_slots).map(weight).collect();
        let slot = |i: usize| {
            let slot = stream.categorical(i as u64, &weights);
            weights[slot] = 0.;
            slot
        };
        (0..n).map(slot).collect()
    }
}

impl Source for Recall {
    fn kind(&self) -> &'static str {
        "recall"
    }

    fn seq_len(&self) -> usize {
        self.0.seq_len
    }

    fn vocab_size(&self) -> usize {
        let Config { n_keys, n_values, n_noise, .. } = self.0;
        1 + n_keys + n_values + n_noise
    }

    /// Labels are the symbols of values.
    fn n_classes(&self) -> usize {
        self.vocab_size()
    }

    fn draw(&self, stream: Stream) -> Example {
        let Config { seq_len, n_keys, n_values, key_len, value_len, n_noise, .. } = self.0;
        let [least, most] = self.0.n_pairs;
        let n = least + stream.fork(0).below(0, (most - least + 1) as u64) as usize;
        let keys = drawn::choose(stream.fork(1), most, n_keys.pow(key_len as u32));
        let symbol =
            |i: usize| (1 + n_keys) as u32 + stream.fork(2).below(i as u64, n_values as u64) as u32;
        let value = |pair: usize| (0..value_len).map(move |i| symbol(pair * value_len + i));
        let filler = |at: usize| match n_noise {
            0 => BLANK,
            n => (1 + n_keys + n_values) as u32 + stream.fork(3).below(at as u64, n as u64) as u32,
        };
        let mut example = Example::new((0..seq_len).map(filler).collect());
        // Noise in the context moves the pairs behind it.
        let mut before = vec![0; n + 1];
        for i in 0..self.0.n_context_noise {
            before[stream.fork(4).below(i as u64, n as u64 + 1) as usize] += 1;
        }
        let (mut at, mut ends) = (0, Vec::new());
        for (pair, &key) in keys[..n].iter().enumerate() {
            at += before[pair];
            for symbol in self.key(key).into_iter().chain(value(pair)) {
                example.ids[at] = symbol;
                at += 1;
            }
            ends.push(at - 1);
        }
        at += before[n];
        let width = key_len + value_len;
        let slots = self.slots(stream.fork(5), n, (seq_len - at) / width);
        for (pair, slot) in slots.into_iter().enumerate() {
            let start = at + width * slot;
            let asked = self.key(keys[pair]).into_iter().chain(value(pair).take(value_len - 1));
            for (i, symbol) in asked.enumerate() {
                example.ids[start + i] = symbol;
            }
            let first = start + key_len - 1;
            for (i, symbol) in value(pair).enumerate() {
                example.label(first + i, symbol, first - ends[pair]);
            }
        }
        example
    }

    fn symbol(&self, id: u32) -> String {
        let Config { n_keys, n_values, .. } = self.0;
        let id = id as usize;
        match id {
            0 => ".".to_owned(),
            _ if id <= n_keys => format!("k{}", id - 1),
            _ if id <= n_keys + n_values => format!("v{}", id - 1 - n_keys),
            _ => format!("n{}", id - 1 - n_keys - n_values),
        }
    }

    /// Symbols between the end of a pair and its question.
    fn places(&self) -> (&'static str, Vec<[usize; 2]>) {
        ("distance", vec![[1, 7], [8, 15], [16, 31], [32, 63], [64, self.0.seq_len.max(64)]])
    }

    fn columns(&self) -> &'static [Column] {
        &[("accuracy", "accuracy"), ("nll", "NLL"), ("exact_match", "all right")]
    }

    /// A value is known to whoever reads its pair, and else as likely as the others.
    fn within_reach(&self, examples: &[Example], reach: usize) -> Option<f64> {
        let expected = |distance: usize| {
            if distance <= reach { 1. } else { 1. / self.0.n_values as f64 }
        };
        let known = |example: &Example| -> f64 {
            example.labelled().map(|label| expected(label.place)).sum()
        };
        let n: usize = examples.iter().map(|example| example.labelled().count()).sum();
        (self.0.value_len == 1).then(|| examples.iter().map(known).sum::<f64>() / n.max(1) as f64)
    }

    /// Of the fewest pairs, whose values take the fewest bits.
    fn within_state(&self, bits: Bits<'_>) -> Option<(&'static str, f64)> {
        let Config { n_pairs: [least, most], n_values, key_len, value_len, .. } = self.0;
        let context = most * (key_len + value_len) + self.0.n_context_noise;
        let most = accuracy_of_bits(bits(context)?, least * value_len, n_values);
        (n_values > 1).then_some(("accuracy", most))
    }

    fn baseline(&self) -> Predictor {
        if self.0.value_len == 1 { Predictor::Unbound } else { Predictor::Chance }
    }

    fn references(&self, examples: &[Example]) -> Vec<Reference> {
        let n_values = self.0.n_values as f64;
        let chance = [("accuracy", 1. / n_values), ("nll", n_values.ln())];
        let mut references = vec![Reference::new(Predictor::Chance, "chance", chance)];
        if self.0.value_len == 1 {
            let accuracy = [("accuracy", share(examples, most_frequent))];
            references.push(Reference::new(Predictor::Unbound, "unbound", accuracy));
        }
        let limit = [("accuracy", 1.), ("nll", 0.), ("exact_match", 1.)];
        references.push(Reference::new(Predictor::Bayes, "limit", limit));
        references
    }
}

/// How often the most frequent label of an example stands in it.
fn most_frequent(example: &Example) -> usize {
    let mut classes: Vec<usize> = example.labelled().map(|label| label.class).collect();
    classes.sort_unstable();
    classes.chunk_by(|a, b| a == b).map(<[usize]>::len).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use tealight_ops::cross_entropy::IGNORE_INDEX;

    use super::*;
    use crate::task::drawn::tests::{digest_of, examples};

    fn source(change: impl FnOnce(&mut Config)) -> Recall {
        let mut config = Config::default();
        change(&mut config);
        config.validate().unwrap();
        Recall(config)
    }

    /// Those of an independent program, of 300 examples each.
    #[test]
    fn examples_are_those_of_the_definition() {
        let pairs = |n: usize| move |config: &mut Config| config.n_pairs = [n, n];
        for (source, expected) in [
            (source(|_| ()), "4511e6763f1d4432"),
            (source(pairs(4)), "8f17de9c65955c55"),
            (source(pairs(8)), "91351ca43de3ac25"),
            (source(|one| (one.seq_len, one.n_pairs) = (128, [8, 8])), "00ce581a5379d34d"),
            (source(|one| (one.seq_len, one.n_pairs) = (64, [16, 16])), "c9d7bca71b039945"),
            (source(|one| (one.seq_len, one.n_pairs) = (64, [1, 16])), "471d50cc0afa7472"),
            (
                source(|one| {
                    (one.seq_len, one.n_keys, one.key_len, one.value_len) = (64, 16, 2, 2);
                }),
                "cf348b1b09629152",
            ),
            (
                source(|one| {
                    (one.seq_len, one.n_pairs) = (64, [1, 12]);
                    (one.n_noise, one.n_context_noise) = (16, 12);
                }),
                "cc891cdc4986df46",
            ),
            (
                source(|one| {
                    (one.seq_len, one.n_pairs, one.gap) = (64, [4, 4], Gap::Power);
                    (one.n_keys, one.n_values) = (4096, 4096);
                }),
                "f4439b2bb4cbc90d",
            ),
        ] {
            assert_eq!(digest_of(&examples(&source, 300)), expected, "{source:?}");
        }
    }

    /// By a program that remembers each pair.
    #[test]
    fn the_answers_stand_in_the_input() {
        let source = source(|one| (one.seq_len, one.n_pairs) = (64, [1, 16]));
        let Config { n_keys, n_values, .. } = source.0;
        let is_key = |id: u32| (1..=n_keys as u32).contains(&id);
        for example in examples(&source, 200) {
            let mut known = std::collections::BTreeMap::new();
            for (at, &id) in example.ids.iter().enumerate().filter(|&(_, &id)| is_key(id)) {
                if let Some(&value) = known.get(&id) {
                    assert_eq!(example.labels[at], i64::from(value));
                } else {
                    assert_eq!(example.labels[at], IGNORE_INDEX);
                    known.insert(id, example.ids[at + 1]);
                }
            }
            assert!(known.values().all(|&value| value as usize <= n_keys + n_values));
            for label in example.labelled() {
                let key = example.ids[label.at];
                let first = example.ids.iter().position(|&id| id == key).unwrap();
                assert_eq!(label.place, label.at - first - 1);
            }
        }
    }

    #[test]
    fn the_most_frequent_value_is_a_baseline() {
        for (n, expected) in [(4, 0.2692), (8, 0.1704)] {
            let source = source(|one| one.n_pairs = [n, n]);
            let references = source.references(&examples(&source, 300));
            let unbound = &references[1];
            assert_eq!(unbound.predictor, Predictor::Unbound);
            assert!((unbound.scores[0].1 - expected).abs() < 5e-5, "{:?}", unbound.scores);
        }
    }

    #[test]
    fn symbols_are_shown_by_what_they_are() {
        let source = source(|one| one.n_noise = 3);
        let shown = [0, 1, 64, 65, 128, 129, 131].map(|id| source.symbol(id));
        assert_eq!(shown, [".", "k0", "k63", "v0", "v63", "n0", "n2"]);
    }

    #[test]
    fn a_value_beyond_the_reach_is_as_likely_as_the_others() {
        let source = Recall(Config::default());
        let examples = examples(&source, 200);
        assert_eq!(source.within_reach(&examples, 31), Some(1.));
        let chance = 1. / 64.;
        assert!((source.within_reach(&examples, 0).unwrap() - chance).abs() < 1e-12);
        let near: usize =
            examples.iter().flat_map(Example::labelled).filter(|label| label.place <= 7).count();
        let n: usize = examples.iter().map(|example| example.labelled().count()).sum();
        let expected = (near as f64 + (n - near) as f64 * chance) / n as f64;
        assert!((source.within_reach(&examples, 7).unwrap() - expected).abs() < 1e-12);
    }

    #[test]
    fn a_state_of_few_bits_bounds_the_accuracy() {
        let eight = Recall(Config { n_pairs: [8, 8], ..Config::default() });
        assert_eq!(eight.within_state(&|_| Some(48.)), Some(("accuracy", 1.)));
        let (_, half) = eight.within_state(&|_| Some(24.)).unwrap();
        assert!((0.5..0.7).contains(&half), "{half}");
        assert_eq!(eight.within_state(&|_| None), None);
    }
}
