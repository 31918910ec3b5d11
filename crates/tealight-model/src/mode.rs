//! Training or evaluation.

use tealight_ops::rng::Stream;

/// The mode of a forward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Without dropout.
    Eval,
    /// With dropout.
    Train {
        /// The random numbers of dropout, a new stream for every micro-batch.
        stream: Stream,
        /// Whether blocks keep their activations.
        activations: Activations,
    },
}

impl Mode {
    /// Training that keeps activations.
    pub fn train(stream: Stream) -> Self {
        Self::Train { stream, activations: Activations::Kept }
    }

    /// Whether blocks keep their activations for the backward pass.
    pub(crate) fn activations(self) -> Activations {
        match self {
            Self::Eval => Activations::Kept,
            Self::Train { activations, .. } => activations,
        }
    }
}

/// Whether a block keeps the activations that its backward pass needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activations {
    /// They are kept from forward to backward.
    #[default]
    Kept,
    /// Activation checkpointing: each block's forward pass runs again in the backward pass (Chen et al. 2016,
    /// <https://arxiv.org/abs/1604.06174>).
    Recomputed,
}
