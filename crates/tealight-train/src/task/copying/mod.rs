//! Writing the symbols of the input again (Jing et al. 2019; Jelassi et al. 2024, <https://arxiv.org/abs/2402.01032>).
//!
//! ```text
//! copy        x₁ … xₙ | x₁ … x_{n−1}          labels x₁ … xₙ at and behind the separator
//! reverse     x₁ … xₙ | xₙ … x₂               labels xₙ … x₁
//! selective   . x₁ . . x₂ … xₙ . | ? ? ?      labels x₁ … xₙ; the data stand at random places among blanks
//! ```
//!
//! `copy` and `reverse` feed each answer back, `selective` (Mamba, Gu and Dao 2023, <https://arxiv.org/abs/2312.00752>) an
//! answer mark, so that the answers are no inputs.
//!
//! **The limit** is 1: the answers stand in the input. Whoever looks up what stood behind the last two symbols (`2-gram`)
//! is wrong where that pair occurs twice. A state of b bits behind the input writes at most the share 2^b / V^n of all
//! strings of n symbols of V without a mistake.

mod config;

use std::collections::BTreeMap;
use std::sync::Arc;

use tealight_ops::rng::Stream;

pub use config::{Config, Mode, Test};

use crate::error::Result;
use crate::task::context::TaskContext;
use crate::task::drawn::{self, Bits, Column, DrawnTask, Example, Reference, Source};
use crate::task::report::Predictor;
use crate::task::{TaskKind, TaskSettings};

/// The blank symbol: it marks places without data, and fills an example up to its length.
const BLANK: u32 = 0;
/// The separator, and the answer mark.
const MARK: u32 = 1;
/// The first symbol of the data.
const FIRST: u32 = 2;

impl TaskKind for Config {
    type Task = DrawnTask;

    fn build(&self, context: &TaskContext<'_>) -> Result<DrawnTask> {
        self.validate()?;
        let tests = self.tests.iter().map(|test| {
            (test.name.clone(), Arc::new(Copying(self.for_test(test))) as Arc<dyn Source>)
        });
        let source = Arc::new(Copying(Self { tests: Vec::new(), ..self.clone() }));
        DrawnTask::new(context, source, tests.collect(), self.sizes())
    }
}

/// Draws the examples.
#[derive(Debug)]
struct Copying(Config);

impl Copying {
    /// The data of an example, in the order in which they are written.
    fn written(&self, ids: &[u32]) -> Vec<u32> {
        let data = ids.iter().take_while(|&&id| id != MARK).filter(|&&id| id != BLANK).copied();
        let mut data: Vec<u32> = data.collect();
        if self.0.mode == Mode::Reverse {
            data.reverse();
        }
        data
    }

    /// How many labels of an example an m-gram look-up tells: what follows the first occurrence of the last m symbols that
    /// were written, in the data in the order in which they are written.
    fn looked_up(&self, example: &Example, m: usize) -> usize {
        let data = self.written(&example.ids);
        let mut first: BTreeMap<&[u32], u32> = BTreeMap::new();
        for width in 1..=m {
            for window in data.windows(width + 1) {
                first.entry(&window[..width]).or_insert(window[width]);
            }
        }
        let answer = |i: usize| match i {
            0 => Some(data[0]),
            _ => first.get(&data[i.saturating_sub(m)..i]).copied(),
        };
        (0..data.len()).filter(|&i| answer(i) == Some(data[i])).count()
    }
}

impl Source for Copying {
    fn kind(&self) -> &'static str {
        "copying"
    }

    fn seq_len(&self) -> usize {
        self.0.seq_len()
    }

    fn vocab_size(&self) -> usize {
        FIRST as usize + self.0.n_symbols
    }

    /// Labels are the symbols of the data.
    fn n_classes(&self) -> usize {
        self.vocab_size()
    }

    fn draw(&self, stream: Stream) -> Example {
        let Config { mode, length: [least, most], n_symbols, n_places, distinct, .. } = self.0;
        let n = least + stream.fork(0).below(0, (most - least + 1) as u64) as usize;
        let data: Vec<u32> = if distinct {
            let chosen = drawn::choose(stream.fork(1), most, n_symbols);
            chosen[..n].iter().map(|&symbol| FIRST + symbol as u32).collect()
        } else {
            let symbol = |i: usize| FIRST + stream.fork(1).below(i as u64, n_symbols as u64) as u32;
            (0..n).map(symbol).collect()
        };
        let mut example = Example::new(vec![BLANK; self.seq_len()]);
        if mode == Mode::Selective {
            let mut places = drawn::choose(stream.fork(2), most, n_places);
            places.truncate(n);
            places.sort_unstable();
            for (i, (place, symbol)) in places.into_iter().zip(data).enumerate() {
                example.ids[place] = symbol;
                example.ids[n_places + i] = MARK;
                example.label(n_places + i, symbol, i + 1);
            }
            return example;
        }
        let answer: Vec<u32> = match mode {
            Mode::Reverse => data.iter().rev().copied().collect(),
            Mode::Copy | Mode::Selective => data.clone(),
        };
        example.ids[..n].copy_from_slice(&data);
        example.ids[n] = MARK;
        example.ids[n + 1..2 * n].copy_from_slice(&answer[..n - 1]);
        for (i, symbol) in answer.into_iter().enumerate() {
            example.label(n + i, symbol, i + 1);
        }
        example
    }

    fn symbol(&self, id: u32) -> String {
        match id {
            BLANK => ".".to_owned(),
            MARK => if self.0.mode == Mode::Selective { "?" } else { "|" }.to_owned(),
            _ => format!("x{}", id - FIRST),
        }
    }

    /// Which answer it is.
    fn places(&self) -> (&'static str, Vec<[usize; 2]>) {
        ("answer", drawn::doubling(4, self.0.length[1]))
    }

    fn columns(&self) -> &'static [Column] {
        &[("accuracy", "accuracy"), ("exact_match", "all right"), ("nll", "NLL")]
    }

    /// 2^b strings of all that there are, of the shortest.
    fn within_state(&self, bits: Bits<'_>) -> Option<(&'static str, f64)> {
        let Config { mode, length: [least, most], n_symbols, n_places, distinct, .. } = self.0;
        let context = if mode == Mode::Selective { n_places } else { most + 1 };
        let left = |i: usize| if distinct { n_symbols - i } else { n_symbols } as f64;
        let needed: f64 = (0..least).map(|i| left(i).log2()).sum();
        Some(("exact_match", (bits(context)? - needed).exp2().min(1.)))
    }

    fn references(&self, examples: &[Example]) -> Vec<Reference> {
        let n_symbols = self.0.n_symbols as f64;
        let chance = [("accuracy", 1. / n_symbols), ("nll", n_symbols.ln())];
        let mut references = vec![Reference::new(Predictor::Chance, "chance", chance)];
        if self.0.mode != Mode::Selective {
            let found: Vec<[usize; 2]> = examples
                .iter()
                .map(|one| [self.looked_up(one, 2), one.labelled().count()])
                .collect();
            let [right, n] = found.iter().fold([0, 0], |[a, b], [c, d]| [a + c, b + d]);
            let exact = found.iter().filter(|[right, n]| right == n).count();
            let accuracy = right as f64 / n.max(1) as f64;
            let exact = exact as f64 / found.len().max(1) as f64;
            let scores = [("accuracy", accuracy), ("exact_match", exact)];
            references.push(Reference::new(Predictor::Bigram, "2-gram", scores));
        }
        let limit = [("accuracy", 1.), ("exact_match", 1.), ("nll", 0.)];
        references.push(Reference::new(Predictor::Bayes, "limit", limit));
        references
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::drawn::tests::{digest_of, examples};

    fn source(mode: Mode, length: [usize; 2], n_symbols: usize, n_places: usize) -> Copying {
        let config = Config { mode, length, n_symbols, n_places, ..Config::default() };
        config.validate().unwrap();
        Copying(config)
    }

    fn distinct(length: [usize; 2]) -> Copying {
        Copying(Config { length, n_symbols: 64, distinct: true, ..Config::default() })
    }

    /// Those of an independent program, of 300 examples each.
    #[test]
    fn examples_are_those_of_the_definition() {
        for (source, expected) in [
            (source(Mode::Selective, [8, 8], 8, 56), "91f8224038919795"),
            (source(Mode::Selective, [8, 8], 8, 248), "e8c6a43785f082c5"),
            (source(Mode::Copy, [1, 16], 16, 0), "918447b4a9e9db7c"),
            (source(Mode::Copy, [32, 32], 16, 0), "5662bf69527a32e6"),
            (source(Mode::Copy, [64, 64], 16, 0), "89ce67a68df02e70"),
            (distinct([1, 16]), "fcd4b24a3108f9b2"),
            (distinct([64, 64]), "674a03658f9c1c98"),
            (source(Mode::Reverse, [1, 16], 16, 0), "e07b60ef0dd53da8"),
            (source(Mode::Reverse, [64, 64], 16, 0), "420d1a42d5967cf6"),
        ] {
            assert_eq!(digest_of(&examples(&source, 300)), expected, "{source:?}");
        }
    }

    #[test]
    fn the_answers_stand_in_the_input() {
        for source in [
            source(Mode::Selective, [2, 8], 8, 56),
            source(Mode::Copy, [1, 16], 16, 0),
            source(Mode::Reverse, [1, 16], 16, 0),
        ] {
            for example in examples(&source, 100) {
                let labels = example.labelled().map(|label| label.class as u32);
                assert!(labels.eq(source.written(&example.ids)), "{example:?}");
            }
        }
    }

    /// As the definition states them for the same examples.
    #[test]
    fn a_look_up_of_two_symbols_is_a_baseline() {
        for (source, expected) in [
            (source(Mode::Copy, [1, 16], 16, 0), [0.991, 0.927]),
            (source(Mode::Copy, [64, 64], 16, 0), [0.900, 0.]),
            (source(Mode::Reverse, [1, 16], 16, 0), [0.992, 0.937]),
        ] {
            let references = source.references(&examples(&source, 300));
            let of = &references[1];
            assert_eq!(of.predictor, Predictor::Bigram);
            for ((_, score), expected) in of.scores.iter().zip(expected) {
                assert!((score - expected).abs() < 5e-4, "{source:?}: {score}");
            }
        }
    }

    #[test]
    fn answers_are_grouped_by_their_number() {
        let ranges = |most: usize| source(Mode::Copy, [1, most], 16, 0).places().1;
        assert_eq!(ranges(1), [[1, 1]]);
        assert_eq!(ranges(16), [[1, 4], [5, 8], [9, 16]]);
    }
}
