//! The linear maps around an attention: into queries, keys and values, and out of the heads.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;

use super::{AttentionInput, AttentionSpec, Reads};
use crate::Linear;

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
        let source = input.source(self.reads)?;
        Ok((
            split_heads(&self.query.forward(input.x)?, self.n_heads)?,
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

/// `(batch, len, d_model)` → `(batch, n_heads, len, head_dim)`, contiguous.
pub fn split_heads(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (batch, len, d_model) = x.dims3()?;
    x.reshape((batch, len, n_heads, d_model / n_heads))?.transpose(1, 2)?.contiguous()
}

/// `(batch, n_heads, len, head_dim)` → `(batch, len, d_model)`
pub fn merge_heads(x: &Tensor) -> Result<Tensor> {
    x.transpose(1, 2)?.flatten_from(2)
}
