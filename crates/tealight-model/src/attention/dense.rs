//! Attention through a matrix of scores, whatever the scores, and whatever makes weights of them.
//!
//! ```text
//! O = P V,   P = distribution(score(Q, K) + mask)
//! ```
//!
//! What softmax attention over a dot product can do tile by tile, this does in one piece: it keeps
//! O(q_len·kv_len) numbers for each head, and in exchange a distribution may look at a whole row.
//! Queries and keys are rotated before they are scored; additive masks and padding are added to the
//! scores, and what is −∞ after that has no weight.

use std::fmt;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::truncated_softmax::{Truncation, truncated_softmax};

use super::projection::{self, Projection, merge_heads};
use super::score::{Score, ScoreFunction};
use super::{Attention, AttentionCost, AttentionInput, AttentionSpec, Reads, RowSum};
use crate::dropout::Dropout;
use crate::linear::Linear;
use crate::mask::causal_mask;
use crate::position::rotary::Rotary;
use crate::{BuildResult, Mask};

/// What makes weights of scores.
pub trait Distribution: fmt::Debug + Send + Sync {
    /// Scores `(.., kv_len)`, −∞ where reading is forbidden → weights of the same shape, zero there.
    /// A row that is −∞ throughout gives zeros.
    fn weights(&self, scores: &Tensor) -> Result<Tensor>;

    /// What a row of the weights sums to.
    fn row_sum(&self) -> RowSum {
        RowSum::One
    }
}

impl Distribution for Truncation {
    fn weights(&self, scores: &Tensor) -> Result<Tensor> {
        truncated_softmax(scores, *self)
    }

    fn row_sum(&self) -> RowSum {
        match self {
            Truncation::TopK(_) => RowSum::One,
            // Nothing may be left of a row.
            Truncation::Cut(_) | Truncation::CutRenormalized(_) | Truncation::ScoreCut(_) => {
                RowSum::AtMostOne
            }
        }
    }
}

/// Builds a layer, or says by key why it cannot be built.
pub fn build(
    spec: &AttentionSpec<'_>,
    vb: &VarBuilder<'_>,
    score: Score,
    distribution: impl Distribution + 'static,
) -> BuildResult<Box<dyn Attention>> {
    Ok(Box::new(Dense {
        score: score.build(spec, vb)?,
        projection: Projection::build(spec, vb)?,
        output: projection::output(spec, vb)?,
        distribution: Box::new(distribution),
        reads: spec.reads,
        rotary: spec.rotary(),
        dropout: Dropout::new(spec.dropout, vb),
    }))
}

/// What a layer costs on one sequence, but for what the distribution does.
pub fn cost(spec: &AttentionSpec<'_>, score: Score, q_len: usize, kv_len: usize) -> AttentionCost {
    let pairs = q_len as f64 * kv_len as f64;
    let context = AttentionCost {
        parameters: 0.,
        flops: 2. * pairs * spec.d_model as f64,
        activations: spec.n_heads as f64 * pairs, // the weights
    };
    projection::cost(spec, q_len, kv_len) + score.cost(spec, q_len, kv_len) + context
}

#[derive(Debug)]
struct Dense {
    projection: Projection,
    score: Box<dyn ScoreFunction>,
    distribution: Box<dyn Distribution>,
    output: Linear,
    reads: Reads,
    rotary: Option<Rotary>,
    dropout: Dropout,
}

impl Attention for Dense {
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

    fn row_sum(&self) -> RowSum {
        self.distribution.row_sum()
    }
}

impl Dense {
    fn attend(&self, query: &Tensor, key: &Tensor, mask: &Mask) -> Result<Tensor> {
        let scores = match &self.rotary {
            Some(rotary) => {
                self.score.scores(&rotary.forward(query, 0)?, &rotary.forward(key, 0)?)?
            }
            None => self.score.scores(query, key)?,
        };
        self.distribution.weights(&self.causal(mask, &scores)?.apply(&scores)?)
    }

    fn causal(&self, mask: &Mask, scores: &Tensor) -> Result<Mask> {
        if self.reads != Reads::Past {
            return Ok(mask.clone());
        }
        let (_batch, _n_heads, q_len, kv_len) = scores.dims4()?;
        mask.clone().with_attn_mask(&causal_mask(q_len, kv_len, scores.device())?)
    }
}
