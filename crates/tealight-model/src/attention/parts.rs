//! The choices of a layer with a softmax over its keys, or a distribution in its place.

use super::output_gate::OutputGate;
use super::projection::Heads;
use super::score::Score;
use super::sink::Sink;

/// What a layer is made of, besides its sizes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    pub(crate) heads: Heads,
    pub(crate) score: Score,
    /// Query i reads only keys j with |i − j| < window.
    pub(crate) window: Option<usize>,
    pub(crate) sink: Sink,
    pub(crate) output_gate: OutputGate,
}
