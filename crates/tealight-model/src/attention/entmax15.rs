//! 1.5-entmax attention: half way between softmax and sparsemax (Peters, Niculae and Martins 2019,
//! <https://arxiv.org/abs/1905.05702>; in transformers, Correia et al. 2019,
//! <https://arxiv.org/abs/1909.00015>).
//!
//! ```text
//! 1.5-entmax(z) = [z/2 − τ(z)]₊²,   τ such that the sum is 1
//! ```
//!
//! As under sparsemax, the scores decide how many keys get a weight, and the others get exactly zero;
//! unlike under sparsemax, the gradient is continuous. A key whose score exceeds all others by 2 gets all
//! the weight. The bias of the key map has no effect under a dot product, as under softmax.
//!
//! Cost: that of softmax attention with a matrix of scores, and the search for τ in each row: at most six
//! passes that shrink the set of candidates, then a sort of those that are left
//! ([`tealight_ops::entmax`]).

use candle_core::{Result, Tensor};

use super::dense::DenseKind;
use super::score::Score;
use crate::choice::settings::settings;

settings! {
    /// `[model.attention] kind = "entmax15"`
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
        tealight_ops::entmax::entmax15(scores)
    }
}
