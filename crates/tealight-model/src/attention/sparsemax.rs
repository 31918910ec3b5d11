//! Sparsemax attention: few keys, the rest exactly zero (Martins and Astudillo 2016,
//! <https://arxiv.org/abs/1602.02068>).
//!
//! ```text
//! sparsemax(z) = argmin over p ∈ Δ of ‖p − z‖² = [z − τ(z)]₊                         eq. (1), (3)
//! ```
//!
//! How many keys have a weight depends on the scores: all of them, if they lie close together, and
//! one alone, if it is 1 above the others. Where a key has no weight, its score has no gradient.
//! The bias of the key map has no effect under a dot product, as under softmax.
//!
//! Cost: that of softmax attention, and a sort of each row.

use candle_core::{Result, Tensor};
use serde::{Deserialize, Serialize};

use super::dense::{DenseKind, Distribution};
use super::score::Score;

/// `[model.attention] kind = "sparsemax"`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How similar a query is to a key.
    pub score: Score,
}

impl DenseKind for Config {
    fn score(&self) -> Score {
        self.score
    }
}

impl Distribution for Config {
    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        tealight_ops::entmax::sparsemax(scores)
    }
}
