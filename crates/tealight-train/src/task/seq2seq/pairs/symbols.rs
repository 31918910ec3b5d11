//! Random symbols, reversed or sorted: a model must learn to move them.

use tealight_ops::rng::Stream;

use super::{Pair, PairSource, check_length};
use crate::checks::check;
use crate::error::{Error, Result};
use crate::settings::settings;

/// The symbols of `reverse`: the first `n_symbols` are used.
const LETTERS: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
/// The symbols of `sort` in ascending order: the first `n_symbols` are used.
const ORDERED: &str = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

settings! {
    /// `[task.source] kind = "reverse"`: the target is the source from its end to its beginning.
    pub struct Reverse {
        /// Number of different symbols, at most 62: `a` to `z`, `A` to `Z`, `0` to `9`.
        pub n_symbols: usize = 26,
        /// The shortest sequence.
        pub min_length: usize = 1,
        /// The longest sequence; all lengths are equally likely.
        pub length: usize = 20,
    }

    /// `[task.source] kind = "sort"`: the target is the source in ascending order.
    pub struct Sort {
        /// Number of different symbols, at most 62: `0` to `9`, `A` to `Z`, `a` to `z`.
        pub n_symbols: usize = 10,
        /// The shortest sequence.
        pub min_length: usize = 1,
        /// The longest sequence; all lengths are equally likely.
        pub length: usize = 20,
    }
}

impl Reverse {
    pub(in crate::task::seq2seq) fn build(&self) -> RandomSymbols {
        let Self { n_symbols, min_length, length } = *self;
        let target = |source: &[char]| source.iter().rev().collect();
        RandomSymbols { symbols: LETTERS, n_symbols, min_length, length, target }
    }
}

impl Sort {
    pub(in crate::task::seq2seq) fn build(&self) -> RandomSymbols {
        let Self { n_symbols, min_length, length } = *self;
        let sorted = |source: &[char]| {
            let mut symbols = source.to_vec();
            symbols.sort_unstable();
            symbols.into_iter().collect()
        };
        RandomSymbols { symbols: ORDERED, n_symbols, min_length, length, target: sorted }
    }
}

/// Draws sequences of symbols.
#[derive(Debug)]
pub(in crate::task::seq2seq) struct RandomSymbols {
    /// All symbols in ASCII, of which the first `n_symbols` are used.
    symbols: &'static str,
    n_symbols: usize,
    min_length: usize,
    length: usize,
    target: fn(&[char]) -> String,
}

impl RandomSymbols {
    /// Checks the settings.
    pub(in crate::task::seq2seq) fn validate(&self) -> Result<()> {
        let Self { symbols, n_symbols, min_length, length, .. } = *self;
        let is_valid = |n| (1..=symbols.len()).contains(&n);
        let rule = format!("must be from 1 to {}", symbols.len());
        check("task.source.n_symbols", n_symbols, is_valid, &rule)?;
        check_length("task.source.length", length)?;
        check_length("task.source.min_length", min_length)?;
        if min_length > length {
            let keys = ["task.source.min_length", "task.source.length"];
            let message = format!("`{}` = {min_length} is above `{}` = {length}", keys[0], keys[1]);
            return Err(Error::config(keys, message));
        }
        Ok(())
    }
}

impl PairSource for RandomSymbols {
    fn draw(&self, stream: Stream) -> Pair {
        let Self { symbols, n_symbols, min_length, length, target } = *self;
        let n_lengths = (length - min_length + 1) as u64;
        let len = min_length as u64 + stream.below(0, n_lengths);
        let symbol =
            |at| char::from(symbols.as_bytes()[stream.below(at, n_symbols as u64) as usize]);
        let source: Vec<char> = (1..=len).map(symbol).collect();
        Pair { target: target(&source), source: source.into_iter().collect() }
    }

    fn essence<'a>(&self, pair: &'a Pair) -> &'a str {
        &pair.source
    }

    fn alphabet(&self) -> Vec<char> {
        let mut alphabet: Vec<char> = self.symbols.chars().take(self.n_symbols).collect();
        alphabet.sort_unstable();
        alphabet
    }
}

#[cfg(test)]
mod tests {
    use tealight_ops::rng::Purpose;

    use super::*;

    #[test]
    fn targets_are_reversed_or_sorted_and_every_length_occurs() {
        let stream = Stream::new(17, Purpose::Data);
        let reverse = Reverse { n_symbols: 30, min_length: 2, length: 5 }.build();
        let sort = Sort { n_symbols: 12, ..Sort::default() }.build();
        let mut lens = [0; 6];
        for index in 0..200 {
            let Pair { source, target } = reverse.draw(stream.fork(index));
            assert_eq!(target.chars().rev().collect::<String>(), source);
            lens[source.len()] += 1;
            let Pair { source, target } = sort.draw(stream.fork(index));
            assert!(target.chars().is_sorted() && target.len() == source.len());
        }
        assert!(lens[..2] == [0, 0] && lens[2..].iter().all(|&n| n > 20), "{lens:?}");
        assert!(sort.alphabet().is_sorted() && reverse.alphabet().is_sorted());
    }
}
