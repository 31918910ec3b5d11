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
use super::onnx::dense::{Rows, Scores};
use super::score::Score;
use crate::choice::settings::settings;
use crate::onnx_graph::{Type, Value};

settings! {
    /// `[model.attention] kind = "sparsemax"`
    pub struct Config {
        /// How similar a query is to a key.
        pub score: Score = Score::ScaledDot,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

impl DenseKind for Config {
    fn score(&self) -> Score {
        self.score
    }

    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        tealight_ops::entmax::sparsemax(scores)
    }

    /// [z − τ]₊ (algorithm 1 of the paper).
    fn onnx_weights(&self, scores: &Scores<'_>) -> Option<Value> {
        let graph = scores.graph;
        let Rows { z, sorted, count } = Rows::new(scores, 1.);
        let sums = graph.cumulative(&sorted, -1);
        // k counts while 1 + k z₍ₖ₎ > Σ of the k largest.
        let least = graph.add(&graph.mul(&count, &sorted), &graph.number(1.));
        let support = graph.cast(&graph.greater(&least, &sums), Type::Float);
        let n = graph.sum(&support, -1);
        let sum = graph.sum(&graph.mul(&sorted, &support), -1);
        let tau = graph.div(&graph.sub(&sum, &graph.number(1.)), &n);
        Some(graph.map("Relu", &graph.sub(&z, &tau)))
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }
}
