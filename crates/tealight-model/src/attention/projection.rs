//! The linear maps around an attention: into queries, keys and values, and out of the heads.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::{AttentionCost, AttentionInput, AttentionSpec, Reads};
use crate::{Bias, Linear};

/// The maps W^Q, W^K and W^V, with heads split off.
#[derive(Debug)]
pub struct Projection {
    query: Linear,
    key: Linear,
    value: Linear,
    n_heads: usize,
    reads: Reads,
}

impl Projection {
    /// Builds `query`, `key` and `value`, each d_model → d_model.
    pub fn build(spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Self> {
        let linear = |name| {
            let weight = spec.init.weight(spec.d_model);
            Linear::build([spec.d_model; 2], spec.bias, weight, &vb.pp(name))
        };
        let (query, key, value) = (linear("query")?, linear("key")?, linear("value")?);
        Ok(Self { query, key, value, n_heads: spec.n_heads, reads: spec.reads })
    }

    /// Queries of `x`, keys and values of the source, each `(batch, n_heads, len, head_dim)`.
    pub fn project(&self, input: &AttentionInput<'_>) -> Result<(Tensor, Tensor, Tensor)> {
        let query = self.query(input.x)?;
        let (key, value) = self.key_value(input.source(self.reads)?)?;
        Ok((query, key, value))
    }

    /// Queries of `x (batch, len, d_model)`: `(batch, n_heads, len, head_dim)`.
    pub fn query(&self, x: &Tensor) -> Result<Tensor> {
        split_heads(&self.query.forward(x)?, self.n_heads)
    }

    /// Keys and values of what is read, `(batch, len, d_model)`: each `(batch, n_heads, len,
    /// head_dim)`.
    pub fn key_value(&self, source: &Tensor) -> Result<(Tensor, Tensor)> {
        Ok((
            split_heads(&self.key.forward(source)?, self.n_heads)?,
            split_heads(&self.value.forward(source)?, self.n_heads)?,
        ))
    }
}

/// The map W^O back into the residual stream.
pub fn output(spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Linear> {
    let weight = spec.init.residual_weight(spec.d_model);
    Linear::build([spec.d_model; 2], spec.bias, weight, &vb.pp("output"))
}

/// What the four maps cost: their activations are queries, keys and values as projected and in
/// heads, the scaled queries, the context twice, and the output.
pub fn cost(spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
    let (d_model, q_len, kv_len) = (spec.d_model as f64, q_len as f64, kv_len as f64);
    let bias = if spec.bias == Bias::With { d_model } else { 0. };
    AttentionCost {
        parameters: 4. * (d_model * d_model + bias),
        flops: 2. * d_model * d_model * 2. * (q_len + kv_len),
        activations: d_model * (6. * q_len + 4. * kv_len),
    }
}

/// `(batch, len, d_model)` → `(batch, n_heads, len, head_dim)`, contiguous.
pub fn split_heads(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (batch, len, d_model) = x.dims3()?;
    x.reshape((batch, len, n_heads, d_model / n_heads))?.transpose(1, 2)?.contiguous()
}

/// `(batch, n_heads, len, head_dim)` → `(batch, len, d_model)`
pub fn merge_heads(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.flatten_from(2)
}
