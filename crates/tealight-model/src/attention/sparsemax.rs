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
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::dense::{self, Distribution};
use super::score::Score;
use super::{Attention, AttentionCost, AttentionKind, AttentionSpec};
use crate::error::BuildResult;

/// `[model.attention] kind = "sparsemax"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How much a query has to do with a key.
    pub score: Score,
}

impl Default for Config {
    fn default() -> Self {
        Self { score: Score::ScaledDot }
    }
}

impl AttentionKind for Config {
    fn build(
        &self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Box<dyn Attention>> {
        dense::build(spec, vb, self.score, Sparsemax)
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        dense::cost(spec, self.score, q_len, kv_len)
    }
}

#[derive(Debug)]
struct Sparsemax;

impl Distribution for Sparsemax {
    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        tealight_ops::entmax::sparsemax(scores)
    }
}
