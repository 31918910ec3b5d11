//! Training or evaluation: the one thing that a forward pass must be told.

use tealight_ops::rng::Stream;

/// How a forward pass is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Deterministic: dropout passes its input through.
    Eval,
    /// Dropout draws from this stream, which is new for every micro-batch.
    Train(Stream),
}
