//! Sparsemax attention: most weights are exactly zero (Martins and Astudillo 2016,
//! <https://arxiv.org/abs/1602.02068>).
//!
//! ```text
//! sparsemax(z) = argmin over p ∈ Δ of ‖p − z‖² = [z − τ(z)]₊                         eq. (1), (3)
//! ```
//!
//! τ(z) is the number for which the weights sum to 1. The scores decide how many keys get a weight: all of
//! them if the scores are close, and one alone if its score exceeds the others by 1. The score of a key
//! without weight has a gradient of zero. The bias of the key map has no effect under a dot product, as
//! under softmax.
//!
//! Cost: that of softmax attention with a matrix of scores, and the search for τ in each row: at most six
//! passes that shrink the set of candidates, then a sort of those that are left
//! ([`tealight_ops::entmax`]).

use candle_core::{Result, Tensor};

use super::dense::DenseKind;
use super::score::Score;
use crate::choice::settings::settings;

settings! {
    /// `[model.attention] kind = "sparsemax"`
    pub struct Config {
        /// How similar a query is to a key.
        pub score: Score = Score::ScaledDot,
    }
}

impl DenseKind for Config {
    fn score(&self) -> Score {
        self.score
    }

    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        tealight_ops::entmax::sparsemax(scores)
    }
}
