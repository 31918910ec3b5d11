//! Multi-head scaled dot-product attention (Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>).
//!
//! ```text
//! Attention(Q, K, V) = softmax(Q Kᵀ / √head_dim) V                                       eq. (1)
//! MultiHead(Q, K, V) = Concat(head₁, …, head_h) W^O,  headᵢ = Attention(Q Wᵢ^Q, K Wᵢ^K, V Wᵢ^V)
//! ```
//!
//! Cost: O(seq_len²·d_model) time, O(seq_len²) memory per head. A query that may read nothing gets
//! zeros. The bias of the key map shifts all scores of a row alike and so has no effect; its gradient
//! is zero up to rounding.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};
use tealight_ops::softmax::softmax;

use super::projection::{self, Projection, merge_heads};
use super::{Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, Reads};
use crate::dropout::Dropout;
use crate::linear::Linear;
use crate::mask::causal_mask;
use crate::position::rotary::Rotary;
use crate::{BuildResult, Mask};

/// `[model.attention] kind = "softmax"`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Divide the scores by √head_dim (§3.2.1). Off gives plain dot-product attention.
    pub scaled: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { scaled: true }
    }
}

impl AttentionKind for Config {
    fn build(
        &self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Box<dyn Attention>> {
        Ok(Box::new(Softmax {
            projection: Projection::build(spec, vb)?,
            output: projection::output(spec, vb)?,
            scale: if self.scaled { 1. / (spec.head_dim() as f64).sqrt() } else { 1. },
            reads: spec.reads,
            rotary: spec.rotary(),
            dropout: Dropout::new(spec.dropout, vb),
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let pairs = q_len as f64 * kv_len as f64;
        let core = AttentionCost {
            parameters: 0.,
            // Q Kᵀ and the weighted sum of V.
            flops: 2. * 2. * pairs * spec.d_model as f64,
            // The scores before and after softmax.
            activations: 2. * spec.n_heads as f64 * pairs,
        };
        projection::cost(spec, q_len, kv_len) + core
    }
}

/// softmax(Q Kᵀ / √head_dim) V, in heads.
#[derive(Debug)]
pub struct Softmax {
    projection: Projection,
    output: Linear,
    scale: f64,
    reads: Reads,
    rotary: Option<Rotary>,
    dropout: Dropout,
}

impl Attention for Softmax {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let (query, key, value) = self.projection.project(input)?; // (batch, n_heads, len, head_dim)
        let weights = self.attend(&query, &key, input.mask)?; // (batch, n_heads, q_len, kv_len)
        let weights = self.dropout.forward(&weights, input.mode)?;
        self.output.forward(&merge_heads(&weights.matmul(&value)?)?)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let (query, key, _value) = self.projection.project(input)?;
        self.attend(&query, &key, input.mask)
    }
}

impl Softmax {
    fn attend(&self, query: &Tensor, key: &Tensor, mask: &Mask) -> Result<Tensor> {
        let (query, key) = match &self.rotary {
            Some(rotary) => (rotary.forward(query, 0)?, rotary.forward(key, 0)?),
            None => (query.clone(), key.clone()),
        };
        let scores = (query * self.scale)?.matmul(&key.t()?)?;
        softmax(&self.causal(mask, &scores)?.apply(&scores)?)
    }

    fn causal(&self, mask: &Mask, scores: &Tensor) -> Result<Mask> {
        if self.reads != Reads::Past {
            return Ok(mask.clone());
        }
        let (_batch, _n_heads, q_len, kv_len) = scores.dims4()?;
        mask.clone().with_attn_mask(&causal_mask(q_len, kv_len, scores.device())?)
    }
}
