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
use super::onnx::dense::{Rows, Scores};
use super::score::Score;
use crate::choice::settings::settings;
use crate::onnx_graph::{Type, Value};

settings! {
    /// `[model.attention] kind = "entmax15"`
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
        tealight_ops::entmax::entmax15(scores)
    }

    /// [z/2 − τ]₊² (algorithm 2 of Peters et al.).
    fn onnx_weights(&self, scores: &Scores<'_>) -> Option<Value> {
        let graph = scores.graph;
        let Rows { z, sorted, count } = Rows::new(scores, 0.5);
        let mean = graph.div(&graph.cumulative(&sorted, -1), &count);
        let squares = graph.cumulative(&graph.mul(&sorted, &sorted), -1);
        let spread = graph.sub(&squares, &graph.mul(&count, &graph.mul(&mean, &mean)));
        let rest = graph.div(&graph.sub(&graph.number(1.), &spread), &count);
        let root = graph.map("Sqrt", &graph.map("Relu", &rest));
        let taus = graph.sub(&mean, &root); // τ, if the k largest had a weight
        // The τ of the largest k that τ₍ₖ₎ ≤ z₍ₖ₎ allows.
        let allowed = graph.cast(&graph.not(&graph.greater(&taus, &sorted)), Type::Int);
        let last = graph.sub(&graph.sum(&allowed, -1), &graph.int(1));
        let part = graph.map("Relu", &graph.sub(&z, &graph.gather_last(&taus, &last)));
        Some(graph.mul(&part, &part))
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }
}
