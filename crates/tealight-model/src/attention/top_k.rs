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

use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};
use tealight_ops::truncated_softmax::Truncation;

use super::dense;
use super::score::Score;
use super::{Attention, AttentionCost, AttentionKind, AttentionSpec};
use crate::error::BuildResult;

/// `[model.attention] kind = "top_k"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How many keys a query reads (the paper's best for translation is 8).
    pub k: usize,
    /// How much a query has to do with a key.
    pub score: Score,
}

impl Default for Config {
    fn default() -> Self {
        Self { k: 8, score: Score::ScaledDot }
    }
}

impl AttentionKind for Config {
    fn build(
        &self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Box<dyn Attention>> {
        spec.positive("k", self.k)?;
        dense::build(spec, vb, self.score, Truncation::TopK(self.k))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        dense::cost(spec, self.score, q_len, kv_len)
    }
}
