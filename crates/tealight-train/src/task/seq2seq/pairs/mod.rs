//! Pairs of sequences: rules that draw them, and files.

pub(super) mod dates;
pub(super) mod file;
pub(super) mod symbols;

use std::fmt;

use tealight_ops::rng::Stream;

use crate::checks::{at_most, positive};
use crate::error::Result;

/// The longest sequence of a side: the time of attention grows with its square.
const MAX_LEN: u64 = 4096;

/// A source and its target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    /// The input.
    pub source: String,
    /// The expected output.
    pub target: String,
}

/// A rule that draws pairs.
pub(super) trait PairSource: fmt::Debug + Send + Sync {
    /// A random pair: a function of the stream.
    fn draw(&self, stream: Stream) -> Pair;

    /// The part of a pair by which it is assigned to a split: pairs of one essence are in one split.
    fn essence<'a>(&self, pair: &'a Pair) -> &'a str;

    /// Every character that can occur, in ascending order.
    fn alphabet(&self) -> Vec<char>;
}

/// Checks a length that a model is built for.
fn check_length(key: &str, value: usize) -> Result<()> {
    positive(key, value)?;
    at_most(key, value as u64, MAX_LEN)
}
