//! Multi-scale retention (Sun et al. 2023, <https://arxiv.org/abs/2307.08621>).
//!
//! ```text
//! Retention(X) = (Q Kᵀ ⊙ D) V,   D_nm = γ^(n−m) for m ≤ n, else 0                          eq. (5)
//! S_n = γ S_{n−1} + K_nᵀ V_n,   Retention(X_n) = Q_n S_n                                   eq. (6)
//! γ = 1 − 2^(−5−arange(0, h)),   head_i = Retention(X, γ_i)                                eq. (8)
//! MSR(X) = (swish(X W_G) ⊙ GroupNorm_h(Concat(head₁, …, head_h))) W_O
//! ```
//!
//! Attention without softmax: a weight fades with the distance and may be negative, and the norm of
//! each head takes the place of the denominator. While decoding, a layer keeps S alone.
//!
//! Cost: O(seq_len·d_model·(d_model + head_dim)) time, O(seq_len·d_model) memory.
//!
//! Q is divided by √head_dim; the other normalisations of §2.2 are left out, since the group norm
//! undoes them up to its ε. As in the authors' code it learns no scale. With rotary positions,
//! queries and keys are rotated as in eq. (4). A score bias would need a softmax to go into. Dropout
//! acts on the gated context. What is padding is not retained, but time passes.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use serde::{Deserialize, Serialize};
use tealight_ops::activation::Function;
use tealight_ops::gate::gated;
use tealight_ops::norm::layer_norm;
use tealight_ops::retention::{self, retention};

use super::decoding::refuse_score_bias;
use super::projection::{self, Projection, merge_heads};
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, DecodingState, Memory,
    RowSum,
};
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};
use crate::mask::Mask;
use crate::mode::Mode;
use crate::position::rotary::Rotary;

/// In the group norm's root.
const EPSILON: f64 = 1e-5;

/// `[model.attention] kind = "retention"`
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {}

impl AttentionKind for Config {
    fn build(
        &self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Box<dyn Attention>> {
        spec.require_causal("retention", "a position reads what those before it have left")?;
        spec.refuse_score_bias("retention", "it has no softmax")?;
        spec.refuse_segments("retention", "its state is carried from one document to the next")?;
        let gate = spec.init.weight(spec.d_model);
        Ok(Box::new(Retention {
            projection: Projection::build(spec, vb)?,
            gate: Linear::build([spec.d_model, spec.d_heads()], spec.bias, gate, &vb.pp("gate"))?,
            output: projection::output(spec, vb)?,
            decay: (0..spec.n_heads).map(|head| 1. - (-5. - head as f64).exp2()).collect(),
            scale: 1. / (spec.head_dim() as f64).sqrt(),
            ones: Tensor::ones(spec.head_dim(), vb.dtype(), vb.device())?,
            rotary: spec.rotary(),
            dropout: Dropout::new(spec.dropout, vb),
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        let (d_model, d_heads, len) = (spec.d_model as f64, spec.d_heads() as f64, q_len as f64);
        let bias = if spec.bias == Bias::With { d_heads } else { 0. };
        let core = AttentionCost {
            parameters: d_model * d_heads + bias,
            // The gate's map; the state, which fades, grows and is read.
            flops: (2. * d_model + 5. * spec.head_dim() as f64) * d_heads * len,
            // The gate before and after its function, the normalised context, the product.
            activations: 4. * d_heads * len,
        };
        projection::cost(spec, q_len, kv_len) + core
    }
}

/// Fading sums in heads, normalised and gated.
#[derive(Debug)]
struct Retention {
    projection: Projection,
    gate: Linear,
    output: Linear,
    /// γ, `(n_heads)`
    decay: Vec<f64>,
    scale: f64,
    /// The scale of the group norm, `(head_dim)`
    ones: Tensor,
    rotary: Option<Rotary>,
    dropout: Dropout,
}

impl Attention for Retention {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let padding = input.mask.padding_only()?;
        let (query, key, value) = self.project(input, 0)?; // (batch, n_heads, len, head_dim)
        let context = retention(&query, &key, &value, &self.decay, padding)?;
        let context = self.dropout.forward(&self.gated(input.x, &context)?, input.mode)?;
        self.output.forward(&context)
    }

    /// Before the group norm.
    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let padding = input.mask.padding_only()?;
        let (query, key, _value) = self.project(input, 0)?;
        retention::reference::weights(&query, &key, &self.decay, padding)
    }

    fn row_sum(&self) -> RowSum {
        RowSum::Any
    }

    fn decoding_state<'a>(
        &'a self,
        _memory: Option<Memory<'a>>,
    ) -> Result<Option<Box<dyn DecodingState + 'a>>> {
        let decay = Tensor::new(self.decay.as_slice(), self.ones.device())?;
        let decay = decay.to_dtype(self.ones.dtype())?.reshape((1, self.decay.len(), 1, 1))?;
        Ok(Some(Box::new(Decoding { layer: self, decay, len: 0, sum: None })))
    }
}

impl Retention {
    /// Queries, keys and values of positions that begin at `start`.
    fn project(
        &self,
        input: &AttentionInput<'_>,
        start: usize,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let (query, key, value) = self.projection.project(input)?;
        let query = (query * self.scale)?;
        Ok(match &self.rotary {
            Some(rotary) => (rotary.forward(&query, start)?, rotary.forward(&key, start)?, value),
            None => (query, key, value),
        })
    }

    /// swish(X W_G) ⊙ GroupNorm(context): `x (batch, len, d_model)` and `context (batch, n_heads,
    /// len, head_dim)` → `(batch, len, n_heads·head_dim)`
    fn gated(&self, x: &Tensor, context: &Tensor) -> Result<Tensor> {
        let context = layer_norm(context, &self.ones, None, EPSILON)?;
        gated(Function::Silu, &self.gate.forward(x)?, &merge_heads(&context)?)
    }
}

/// In the middle of a sequence.
#[derive(Debug)]
struct Decoding<'a> {
    layer: &'a Retention,
    /// γ, `(1, n_heads, 1, 1)`
    decay: Tensor,
    /// Positions so far.
    len: usize,
    /// S, `(batch, n_heads, head_dim, head_dim)`
    sum: Option<Tensor>,
}

impl DecodingState for Decoding<'_> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        refuse_score_bias(score_bias)?;
        let mask = Mask::none();
        let input = AttentionInput { x, memory: None, mask: &mask, mode: Mode::Eval };
        let (query, key, value) = self.layer.project(&input, self.len)?;
        let (_batch, n_new, _d_model) = x.dims3()?;
        let contexts = (0..n_new).map(|i| {
            let at = |x: &Tensor| x.narrow(2, i, 1)?.contiguous();
            at(&query)?.matmul(&self.retain(&at(&key)?, &at(&value)?)?)
        });
        let context = Tensor::cat(&contexts.collect::<Result<Vec<_>>>()?, 2)?;
        self.len += n_new;
        self.layer.output.forward(&self.layer.gated(x, &context)?)
    }

    fn select(&mut self, rows: &Tensor) -> Result<()> {
        self.sum =
            self.sum.as_ref().map(|sum| sum.contiguous()?.index_select(rows, 0)).transpose()?;
        Ok(())
    }
}

impl Decoding<'_> {
    /// S after one more key and value, `(batch, n_heads, 1, head_dim)` each.
    fn retain(&mut self, key: &Tensor, value: &Tensor) -> Result<Tensor> {
        let new = key.t()?.contiguous()?.matmul(value)?;
        let sum = match &self.sum {
            None => new,
            Some(sum) => (sum.broadcast_mul(&self.decay)? + new)?,
        };
        self.sum = Some(sum.clone());
        Ok(sum)
    }
}
