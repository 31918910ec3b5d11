//! Top-k attention: softmax over the k keys of the largest scores (Zhao et al. 2019, "Explicit Sparse
//! Transformer", <https://arxiv.org/abs/1912.11637>).
//!
//! ```text
//! P = softmax(M(S, k)),   M(S, k)ᵢⱼ = Sᵢⱼ among the k largest of row i, else −∞
//! ```
//!
//! Of equal scores the first are kept, so that there are never more than k. With k keys or fewer to
//! read it is softmax attention. A key that is not kept has no gradient; the bias of the key map has
//! none at all, as under softmax.
//!
//! Cost: that of softmax attention. All scores are computed, and most of them dropped.

use candle_core::{Result, Tensor};
use serde::{Deserialize, Serialize};
use tealight_ops::truncated_softmax::{Truncation, truncated_softmax};

use super::AttentionSpec;
use super::dense::{DenseKind, Distribution};
use super::score::Score;
use crate::error::BuildResult;

/// `[model.attention] kind = "top_k"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How many keys a query reads (the paper's best for translation is 8).
    pub k: usize,
    /// How similar a query is to a key.
    pub score: Score,
}

impl Default for Config {
    fn default() -> Self {
        Self { k: 8, score: Score::ScaledDot }
    }
}

impl DenseKind for Config {
    fn score(&self) -> Score {
        self.score
    }

    fn validate(&self, spec: &AttentionSpec<'_>) -> BuildResult<()> {
        spec.positive("k", self.k)
    }
}

impl Distribution for Config {
    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        truncated_softmax(scores, Truncation::TopK(self.k))
    }
}
