//! Training or evaluation: the one thing that a forward pass must be told.

use tealight_ops::rng::Stream;

/// How a forward pass is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Deterministic: dropout passes its input through.
    Eval,
    /// Dropout draws from this stream, which is new for every micro-batch.
    Train {
        /// The random numbers.
        stream: Stream,
        /// What becomes of what is inside the blocks.
        activations: Activations,
    },
}

impl Mode {
    /// Training that keeps activations.
    pub fn train(stream: Stream) -> Self {
        Self::Train { stream, activations: Activations::Kept }
    }

    /// What becomes of what is inside the blocks.
    pub(crate) fn activations(self) -> Activations {
        match self {
            Self::Eval => Activations::Kept,
            Self::Train { activations, .. } => activations,
        }
    }
}

/// What becomes of what a block needs for its backward pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// It is kept until then.
    #[default]
    Kept,
    /// It is computed again then, block by block (Chen et al. 2016).
    Recomputed,
}
