//! Top-k attention: softmax over the k keys with the largest scores (Zhao et al. 2019, "Explicit Sparse
//! Transformer", <https://arxiv.org/abs/1912.11637>).
//!
//! ```text
//! P = softmax(M(S, k)),   M(S, k)ᵢⱼ = Sᵢⱼ among the k largest of row i, else −∞
//! ```
//!
//! Of equal scores the first are kept, so never more than k. With at most k keys it is softmax attention.
//! Keys that are not kept get no gradient; the bias of the key map has a gradient of zero, as under softmax.
//!
//! Cost: that of softmax attention with a matrix of scores. All scores are computed.

use candle_core::{Result, Tensor};
use tealight_ops::truncated_softmax::{Truncation, truncated_softmax};

use super::AttentionSpec;
use super::dense::DenseKind;
use super::onnx::dense::Scores;
use super::reduces_to::ReducesTo;
use super::score::Score;
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::onnx_graph::{FORBIDDEN, Value, signed};

settings! {
    /// `[model.attention] kind = "top_k"`
    pub struct Config {
        /// How many keys a query reads (the paper's best for translation is 8).
        pub k: usize = 8,
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

    fn validate(&self, spec: &AttentionSpec<'_>) -> BuildResult<()> {
        spec.positive("k", self.k)
    }

    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        truncated_softmax(scores, Truncation::TopK(self.k))
    }

    fn reduces_to(&self, len: usize) -> Option<ReducesTo> {
        let effect = format!("keeps all {len} positions of a sequence");
        (self.k >= len).then(|| ReducesTo::softmax("k", &self.k, &effect))
    }

    fn onnx_weights(&self, scores: &Scores<'_>) -> Option<Value> {
        let Scores { graph, matrix: scores, kv_len, .. } = scores;
        let k = graph.min(&graph.int(signed(self.k)), kv_len);
        let [values, places] = graph.top(scores, &k);
        let nothing = graph.expand(&graph.number(FORBIDDEN), &graph.map("Shape", scores));
        Some(graph.softmax(&graph.scatter_last(&nothing, &places, &values), -1))
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }
}
