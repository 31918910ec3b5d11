//! Where pairs come from: rules that draw them, and files.

pub(super) mod dates;
pub(super) mod file;
pub(super) mod symbols;

use std::fmt;

use tealight_ops::rng::Stream;

/// What is read, and what is to be written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pair {
    /// What is read.
    pub source: String,
    /// What is to be written.
    pub target: String,
}

/// A rule that draws pairs.
pub(super) trait PairSource: fmt::Debug + Send + Sync {
    /// A random pair: a function of the stream.
    fn draw(&self, stream: Stream) -> Pair;

    /// What must not be seen in training if it is to be asked for in validation.
    fn essence<'a>(&self, pair: &'a Pair) -> &'a str;

    /// Every character that can occur, in ascending order.
    fn alphabet(&self) -> Vec<char>;
}
