//! Attention to the neighbourhood alone: a window that slides with the query (Beltagy et al. 2020,
//! "Longformer", §3.1, <https://arxiv.org/abs/2004.05150>; Child et al. 2019,
//! <https://arxiv.org/abs/1904.10509>).
//!
//! ```text
//! O_i = Σ_j softmax_j(q_i·k_j / √head_dim) v_j        over |i − j| < window, and j ≤ i if causal
//! ```
//!
//! Exact, not an approximation of something wider: a position that lies further away is reached
//! through the layers between, as in a convolution; n layers reach n·(window − 1) positions. With
//! a window of at least T it is softmax attention.
//!
//! Longformer's window w has w/2 keys on either side of the query; ours has window − 1 on either
//! side, so that w = 2·window − 1. Its global positions and its dilation are left out.
//!
//! Cost: O(T·window·d_model) time, O(T·d_model) memory; window − 1 keys are kept in decoding.

use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::projection::{self, Heads, Projection};
use super::score::Score;
use super::tiled::{self, Tiled};
use super::{Attention, AttentionCost, AttentionKind, AttentionSpec, Reads};
use crate::error::BuildResult;

/// `[model.attention] kind = "local"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Query i reads keys j with |i − j| < window.
    pub window: usize,
    /// Heads of keys and values, a divisor of `model.n_heads`; as many as of queries when absent.
    pub n_kv_heads: Option<usize>,
    /// Normalise queries and keys within each head.
    pub qk_norm: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { window: 64, n_kv_heads: None, qk_norm: false }
    }
}

impl Config {
    fn heads(&self) -> Heads {
        Heads { n_kv_heads: self.n_kv_heads, norm: self.qk_norm.into() }
    }
}

impl AttentionKind for Config {
    fn build(
        &self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Box<dyn Attention>> {
        let why = "a position of one sequence has no neighbourhood in another";
        spec.refuse_memory("local", why)?;
        spec.positive("window", self.window)?;
        let projection = Projection::with(spec, vb, self.heads())?;
        let layer = Tiled::build(spec, vb, projection, Score::ScaledDot, Some(self.window))?;
        Ok(Box::new(layer))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let sides = if spec.reads == Reads::Past { 1. } else { 2. };
        let reach = (sides * (self.window.max(1) - 1) as f64 + 1.).min(kv_len as f64);
        projection::cost_with(spec, self.heads(), q_len, kv_len)
            + tiled::cost(spec, Score::ScaledDot, q_len, reach)
    }
}
