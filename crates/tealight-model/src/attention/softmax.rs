//! Multi-head attention through a softmax (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).
//!
//! ```text
//! Attention(Q, K, V) = softmax(Q Kᵀ / √head_dim) V                                       eq. (1)
//! MultiHead(Q, K, V) = Concat(head₁, …, head_h) W^O,  headᵢ = Attention(Q Wᵢ^Q, K Wᵢ^K, V Wᵢ^V)
//! ```
//!
//! or with another score in the place of Q Kᵀ / √head_dim, see [`score`](super::score).
//!
//! Cost: O(T²·d_model) time. Memory is O(T·d_model) for the scores that are products (`scaled_dot`,
//! `dot` and `general`), whose weights are computed tile by tile (`tealight_ops::attention`); the
//! others keep a matrix of scores for each head, see [`dense`]. A query that may read nothing gets
//! zeros. The bias of the key map shifts all products of a row alike and so has no effect, unless
//! keys are normalised; its gradient is zero up to rounding.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};

use super::dense::{self, Distribution};
use super::projection::{self, Heads, Projection};
use super::score::Score;
use super::tiled::Tiled;
use super::{Attention, AttentionCost, AttentionKind, AttentionSpec};
use crate::error::BuildResult;

/// `[model.attention] kind = "softmax"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// How much a query has to do with a key. The paper's is `scaled_dot` (§3.2.1).
    pub score: Score,
    /// Heads of keys and values, a divisor of `model.n_heads`; as many as of queries when absent.
    pub n_kv_heads: Option<usize>,
    /// Normalise queries and keys within each head.
    pub qk_norm: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { score: Score::ScaledDot, n_kv_heads: None, qk_norm: false }
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
        let projection = Projection::with(spec, vb, self.heads())?;
        if self.score.is_product() {
            return Ok(Box::new(Tiled::build(spec, vb, projection, self.score, None)?));
        }
        dense::build_with(spec, vb, projection, self.score, Softmax)
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let maps = projection::cost_with(spec, self.heads(), q_len, kv_len);
        let core = if self.score.is_product() {
            super::tiled::cost(spec, self.score, q_len, kv_len as f64)
        } else {
            dense::core_cost(spec, self.score, q_len, kv_len)
        };
        maps + core
    }
}

/// The distribution, where scores are no products.
#[derive(Debug)]
struct Softmax;

impl Distribution for Softmax {
    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        tealight_ops::softmax::softmax(scores)
    }
}
