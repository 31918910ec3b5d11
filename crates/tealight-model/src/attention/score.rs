//! Scores: how similar a query is to a key, before the softmax.
//!
//! ```text
//! scaled_dot   qᵀk / √head_dim                  Vaswani et al. 2017, <https://arxiv.org/abs/1706.03762>
//! dot          qᵀk                              Luong et al. 2015, <https://arxiv.org/abs/1508.04025>
//! general      qᵀ W k                           Luong et al. 2015
//! additive     v_aᵀ tanh(W_q q + W_k k + b)     Bahdanau et al. 2014, <https://arxiv.org/abs/1409.0473>
//! logistic     σ(w_qᵀ q + w_kᵀ k + b)
//! ```
//!
//! Each head has its own parameters. A logistic score lies between 0 and 1, so under softmax no weight is
//! more than e times another.
//!
//! Cost: O(q_len·kv_len·head_dim) time for each head. The first three are matrix products. For its gradient
//! the additive score keeps O(q_len·kv_len·head_dim) numbers, the others O(q_len·kv_len).

use candle_core::{D, Result, Tensor, bail};
use candle_nn::{VarBuilder, init};
use tealight_ops::activation::sigmoid;
use tealight_ops::matmul::matmul_transposed;
use tealight_ops::swap_axes::swap_axes;

use super::{AttentionCost, AttentionSpec};
use crate::choice::names::{Named as _, names};
use crate::error::{BuildError, BuildResult};
use crate::position::AttentionNeeds;

names! {
    /// How similar a query is to a key.
    pub enum Score {
        /// qᵀk / √head_dim (Vaswani et al. 2017).
        "scaled_dot" => ScaledDot,
        /// qᵀk (Luong et al. 2015).
        "dot" => Dot,
        /// qᵀ W k, a matrix for each head (Luong et al. 2015).
        "general" => General,
        /// v_aᵀ tanh(W_q q + W_k k + b) (Bahdanau et al. 2014).
        "additive" => Additive,
        /// σ(w_qᵀ q + w_kᵀ k + b), from 0 to 1.
        "logistic" => Logistic,
    }
}

impl Score {
    /// Builds the score with its parameters under `score`.
    ///
    /// # Errors
    /// If rotary positions meet a score that is not a plain dot product, with the keys.
    pub(super) fn build(
        self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<ScoreFunction> {
        let (n_heads, head_dim) = (spec.n_heads, spec.head_dim());
        let (vector, square) = ((n_heads, head_dim), (n_heads, head_dim, head_dim));
        let (vb, weight) = (vb.pp("score"), spec.init.weight(head_dim));
        self.refuse_rotary(spec)?;
        Ok(match self {
            Self::ScaledDot => ScoreFunction::Dot { scale: 1. / (head_dim as f64).sqrt() },
            Self::Dot => ScoreFunction::Dot { scale: 1. },
            Self::General => {
                ScoreFunction::General { weight: vb.get_with_hints(square, "weight", weight)? }
            }
            Self::Additive => ScoreFunction::Additive(AdditiveParameters {
                query: vb.get_with_hints(square, "query", weight)?,
                key: vb.get_with_hints(square, "key", weight)?,
                bias: vb.get_with_hints(vector, "bias", init::ZERO)?,
                direction: vb.get_with_hints(vector, "direction", weight)?,
            }),
            Self::Logistic => ScoreFunction::Logistic {
                query: vb.get_with_hints(vector, "query", weight)?,
                key: vb.get_with_hints(vector, "key", weight)?,
                bias: vb.get_with_hints(n_heads, "bias", init::ZERO)?,
            },
        })
    }

    fn refuse_rotary(self, spec: &AttentionSpec<'_>) -> BuildResult<()> {
        let is_plain = matches!(self, Self::ScaledDot | Self::Dot);
        if is_plain || !matches!(spec.position, AttentionNeeds::Rotary(_)) {
            return Ok(());
        }
        let key = format!("{}.score", spec.key);
        let message = format!(
            "`{key}` = \"{}\" cannot take positions that rotate queries and keys \
             (`model.position.kind`), because only in a product of the two alone does a rotation become \
             a distance",
            self.name()
        );
        Err(BuildError::config(["model.position.kind", key.as_str()], message))
    }

    /// Whether the score is the product of the key with a function of the query. Such scores are computed tile
    /// by tile and never kept.
    pub fn is_product(self) -> bool {
        matches!(self, Self::ScaledDot | Self::Dot | Self::General)
    }

    /// The cost of computing q' of a [product](Self::is_product) scale · q'ᵀk: that of Wᵀq for `general`, zero
    /// for other scores. It excludes the product q'ᵀk.
    pub fn parameters_cost(self, spec: &AttentionSpec<'_>, q_len: usize) -> AttentionCost {
        if self != Self::General {
            return AttentionCost::default();
        }
        let (d_heads, head_dim) = (spec.d_heads() as f64, spec.head_dim() as f64);
        AttentionCost {
            parameters: d_heads * head_dim,
            flops: 2. * q_len as f64 * d_heads * head_dim,
            activations: q_len as f64 * d_heads,
        }
    }

    /// The cost of the masked matrix of scores of one sequence.
    pub fn cost(self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (d_heads, n_heads) = (spec.d_heads() as f64, spec.n_heads as f64);
        let (pairs, lens) = (q_len as f64 * kv_len as f64, (q_len + kv_len) as f64);
        let head_dim = spec.head_dim() as f64;
        let product = AttentionCost {
            parameters: 0.,
            flops: 2. * pairs * d_heads,
            activations: n_heads * pairs,
        };
        match self {
            Self::ScaledDot | Self::Dot | Self::General => {
                product + self.parameters_cost(spec, q_len)
            }
            // Two linear maps; a sum, tanh and a product for every pair and feature.
            Self::Additive => AttentionCost {
                parameters: 2. * d_heads * (head_dim + 1.),
                flops: 2. * lens * d_heads * head_dim + 4. * pairs * d_heads,
                activations: lens * d_heads + 2. * pairs * d_heads + n_heads * pairs,
            },
            Self::Logistic => AttentionCost {
                parameters: 2. * d_heads + n_heads,
                flops: 2. * lens * d_heads + 2. * n_heads * pairs,
                activations: 3. * n_heads * pairs,
            },
        }
    }
}

/// `scale` · qᵀk: `query (.., q_len, head_dim)`, `key (.., kv_len, head_dim)` → `(.., q_len, kv_len)`
pub fn dot(query: &Tensor, key: &Tensor, scale: f64) -> Result<Tensor> {
    matmul_transposed(&(query * scale)?, key)
}

/// qᵀ W k: `query (batch, n_heads, q_len, n)`, `key (batch, n_heads, kv_len, m)`, `weight (n_heads or
/// 1, n, m)` → `(batch, n_heads, q_len, kv_len)`
pub fn general(query: &Tensor, key: &Tensor, weight: &Tensor) -> Result<Tensor> {
    matmul_transposed(&query.broadcast_matmul(weight)?, key)
}

/// The parameters of [`additive`], for each head or for all of them.
#[derive(Clone, Debug)]
pub struct AdditiveParameters {
    /// W_q, `(n_heads or 1, n_hidden, n)`
    pub query: Tensor,
    /// W_k, `(n_heads or 1, n_hidden, m)`
    pub key: Tensor,
    /// b, `(n_heads or 1, n_hidden)`
    pub bias: Tensor,
    /// v_a, `(n_heads or 1, n_hidden)`
    pub direction: Tensor,
}

/// v_aᵀ tanh(W_q q + W_k k + b): `query (batch, n_heads, q_len, n)`, `key (batch, n_heads, kv_len, m)`
/// → `(batch, n_heads, q_len, kv_len)`
pub fn additive(query: &Tensor, key: &Tensor, parameters: &AdditiveParameters) -> Result<Tensor> {
    let AdditiveParameters { query: w_q, key: w_k, bias, direction } = parameters;
    let query = query.broadcast_matmul(&w_q.t()?)?.broadcast_add(&bias.unsqueeze(1)?)?;
    let key = key.broadcast_matmul(&w_k.t()?)?;
    let (batch, n_heads, q_len, n_hidden) = query.dims4()?;
    let (_batch, _n_heads, kv_len, _n_hidden) = key.dims4()?;
    // (batch, n_heads, q_len, kv_len, n_hidden)
    let hidden = query.unsqueeze(3)?.broadcast_add(&key.unsqueeze(2)?)?.tanh()?;
    hidden
        .reshape((batch, n_heads, q_len * kv_len, n_hidden))?
        .broadcast_matmul(&direction.unsqueeze(D::Minus1)?)?
        .reshape((batch, n_heads, q_len, kv_len))
}

/// σ(w_qᵀ q + w_kᵀ k + b): `query (batch, n_heads, q_len, n)`, `key (batch, n_heads, kv_len, m)`, `w_q
/// (n_heads or 1, n)`, `w_k (n_heads or 1, m)`, `bias (n_heads or 1)` → `(batch, n_heads, q_len,
/// kv_len)`
pub fn logistic(
    query: &Tensor,
    key: &Tensor,
    [w_q, w_k]: [&Tensor; 2],
    bias: &Tensor,
) -> Result<Tensor> {
    let query = query.broadcast_matmul(&w_q.unsqueeze(D::Minus1)?)?; // (batch, n_heads, q_len, 1)
    let key = key.broadcast_matmul(&w_k.unsqueeze(D::Minus1)?)?.t()?; // (batch, n_heads, 1, kv_len)
    let query = query.broadcast_add(&bias.reshape(((), 1, 1))?)?;
    sigmoid(&query.broadcast_add(&key)?)
}

/// A built score with its parameters.
#[derive(Clone, Debug)]
pub(super) enum ScoreFunction {
    Dot {
        scale: f64,
    },
    General {
        /// `(n_heads, head_dim, head_dim)`
        weight: Tensor,
    },
    Additive(AdditiveParameters),
    Logistic {
        /// `(n_heads, head_dim)`
        query: Tensor,
        /// `(n_heads, head_dim)`
        key: Tensor,
        /// `(n_heads)`
        bias: Tensor,
    },
}

impl ScoreFunction {
    /// `query (batch, n_heads, q_len, head_dim)`, `key (batch, n_heads, kv_len, head_dim)` →
    /// `(batch, n_heads, q_len, kv_len)`
    pub(super) fn scores(&self, query: &Tensor, key: &Tensor) -> Result<Tensor> {
        match self {
            Self::Dot { scale } => dot(query, key, *scale),
            Self::General { weight } => general(query, key, weight),
            Self::Additive(parameters) => additive(query, key, parameters),
            Self::Logistic { query: w_q, key: w_k, bias } => logistic(query, key, [w_q, w_k], bias),
        }
    }

    /// Splits a score that [is a product](Score::is_product) into q' and a scale, where the score is
    /// scale · q'ᵀk: `query (batch, q_len, n_heads, head_dim)` → q' of the same shape.
    ///
    /// # Errors
    /// If the score is not a product.
    pub(super) fn as_product(&self, query: &Tensor) -> Result<(Tensor, f64)> {
        match self {
            Self::Dot { scale } => Ok((query.clone(), *scale)),
            Self::General { weight } => {
                let mapped = swap_axes(query)?.broadcast_matmul(weight)?;
                Ok((mapped.transpose(1, 2)?, 1.))
            }
            Self::Additive(_) | Self::Logistic { .. } => {
                bail!("{self:?} is no product of a query and a key")
            }
        }
    }
}
