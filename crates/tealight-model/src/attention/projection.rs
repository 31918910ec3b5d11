//! The linear maps around an attention: W^Q, W^K and W^V into heads, and W^O out of them.
//!
//! Several heads of queries may share one head of keys and values: groups of them (grouped-query, Ainslie
//! et al. 2023, <https://arxiv.org/abs/2305.13245>) or all of them (multi-query, Shazeer 2019,
//! <https://arxiv.org/abs/1911.02150>). Parameters and decoding cache shrink by the same factor.
//!
//! Queries and keys may be normalised, see [`qk_norm`](super::qk_norm).

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::reshape;
use tealight_ops::swap_axes::swap_axes;

use super::qk_norm::{Gain, QkNorm};
use super::short_convolution::{self, Before, ShortConvolution};
use super::{AttentionCost, AttentionInput, AttentionSpec, Reads};
use crate::error::BuildResult;
use crate::layers::linear::{Bias, Linear};
use crate::position::rotary::Rotary;

/// The maps W^Q, W^K and W^V of the residual stream.
#[derive(Debug)]
pub(super) struct Maps {
    query: Linear,
    key: Linear,
    value: Linear,
    convolutions: Option<[ShortConvolution; 3]>,
    pub(super) reads: Reads,
}

impl Maps {
    /// Builds `query`, `key` and `value` with these numbers of outputs, and their convolutions, if there are any.
    pub(super) fn build(
        spec: &AttentionSpec<'_>,
        widths: [usize; 3],
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let [query, key, value] = widths;
        Ok(Self {
            query: spec.linear("query", query, vb)?,
            key: spec.linear("key", key, vb)?,
            value: spec.linear("value", value, vb)?,
            convolutions: ShortConvolution::build_all(widths, spec, vb)?,
            reads: spec.reads,
        })
    }

    /// Queries of `x`, and keys and values of the sequence that is read: `(batch, len, outputs)` each.
    pub(super) fn project(&self, input: &AttentionInput<'_>) -> Result<[Tensor; 3]> {
        let source = input.source(self.reads)?;
        if self.reads == Reads::Memory {
            let [key, value] = Linear::forward_all([&self.key, &self.value], source)?;
            return Ok([self.query.forward(input.x)?, key, value]);
        }
        let outputs = Linear::forward_all([&self.query, &self.key, &self.value], source)?;
        let before = &mut Before::whole(input.mask);
        ShortConvolution::activated_all(self.convolutions.as_ref(), outputs, before)
    }

    /// Queries of `x (batch, q_len, d_model)`.
    pub(super) fn queries(&self, x: &Tensor, before: &mut Before<'_>) -> Result<Tensor> {
        let convolution = self.convolutions.as_ref().map(|[query, ..]| query);
        ShortConvolution::activated(convolution, &self.query.forward(x)?, before)
    }

    /// Keys and values of `source (batch, kv_len, d_model)`.
    pub(super) fn keys_and_values(
        &self,
        source: &Tensor,
        before: &mut Before<'_>,
    ) -> Result<[Tensor; 2]> {
        let [key, value] = Linear::forward_all([&self.key, &self.value], source)?;
        let Some([_, of_key, of_value]) = &self.convolutions else { return Ok([key, value]) };
        let key = ShortConvolution::activated(Some(of_key), &key, before)?;
        Ok([key, ShortConvolution::activated(Some(of_value), &value, before)?])
    }
}

/// The maps W^Q, W^K and W^V into heads, and the rotation of queries and keys.
#[derive(Debug)]
pub(super) struct Projection {
    maps: Maps,
    /// g_q and g_k, if queries and keys are normalised.
    gains: Option<[Gain; 2]>,
    rotary: Option<Rotary>,
    n_heads: usize,
    n_kv_heads: usize,
}

/// Settings of the maps that several kinds share.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Heads {
    /// Heads of keys and values; `None`: as many as of queries.
    pub(crate) n_kv_heads: Option<usize>,
    /// The normalisation of queries and keys, if there is one.
    pub(crate) qk_norm: Option<QkNorm>,
}

impl Heads {
    /// The number of heads of keys and values.
    ///
    /// # Errors
    /// If it does not divide the number of heads of queries.
    fn n_kv_heads(self, spec: &AttentionSpec<'_>) -> BuildResult<usize> {
        let n_heads = spec.n_heads;
        let Some(n_kv_heads) = self.n_kv_heads else { return Ok(n_heads) };
        spec.positive("n_kv_heads", n_kv_heads)?;
        if !n_heads.is_multiple_of(n_kv_heads) {
            let rule = format!("= {n_kv_heads} does not divide `model.n_heads` = {n_heads}");
            return Err(spec.invalid("n_kv_heads", &rule));
        }
        Ok(n_kv_heads)
    }

    /// The width of all keys together, for an estimate. Too many heads are refused when the layer is
    /// built, not here for their memory.
    fn kv_width(self, spec: &AttentionSpec<'_>) -> usize {
        let n_kv_heads = self.n_kv_heads.map_or(spec.n_heads, |n| n.min(spec.n_heads));
        n_kv_heads.saturating_mul(spec.head_dim())
    }
}

impl Projection {
    /// Builds `query`, and `key` and `value` with `heads.n_kv_heads`; under `heads.qk_norm` also the gains
    /// `query_norm` and `key_norm`.
    pub(super) fn build(
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
        heads: Heads,
    ) -> BuildResult<Self> {
        let n_kv_heads = heads.n_kv_heads(spec)?;
        let gains = heads.qk_norm.map(|norm| norm.build([spec.n_heads, n_kv_heads], spec, vb));
        let gains = gains.transpose()?;
        let kv_width = n_kv_heads.saturating_mul(spec.head_dim());
        let maps = Maps::build(spec, [spec.d_heads(), kv_width, kv_width], vb)?;
        Ok(Self { maps, gains, rotary: spec.rotary(), n_heads: spec.n_heads, n_kv_heads })
    }

    /// Which positions the layer reads.
    pub(super) fn reads(&self) -> Reads {
        self.maps.reads
    }

    /// Queries of `x`, `(batch, n_heads, q_len, head_dim)`, and keys and values of the sequence that is
    /// read, `(batch, n_kv_heads, kv_len, head_dim)`, contiguous and not rotated.
    pub(super) fn project(&self, input: &AttentionInput<'_>) -> Result<[Tensor; 3]> {
        let [query, key, value] = self.project_heads_last(input)?;
        Ok([swap_axes(&query)?, swap_axes(&key)?, swap_axes(&value)?])
    }

    /// As [`Self::project`], of `x (batch, len, d_model)` that goes on from what lies `before`.
    pub(super) fn project_after(&self, x: &Tensor, before: &mut Before<'_>) -> Result<[Tensor; 3]> {
        let query = self.query_heads(&self.maps.queries(x, before)?)?;
        let [key, value] = self.maps.keys_and_values(x, before)?;
        let (key, value) = self.key_value_heads(&key, &value)?;
        Ok([swap_axes(&query)?, swap_axes(&key)?, swap_axes(&value)?])
    }

    /// Queries, keys and values with the axes in the order in which the maps give them, `(batch, len,
    /// heads, head_dim)`, which costs no transposition; queries and keys rotated, if positions are rotary.
    pub(super) fn project_rotated(&self, input: &AttentionInput<'_>) -> Result<[Tensor; 3]> {
        let [query, key, value] = self.project_heads_last(input)?;
        Ok([self.rotated_heads_last(&query, 0)?, self.rotated_heads_last(&key, 0)?, value])
    }

    /// Queries as in [`Self::project_rotated`], of `x (batch, len, d_model)`, whose first position is `start`.
    pub(super) fn queries(
        &self,
        x: &Tensor,
        start: usize,
        before: &mut Before<'_>,
    ) -> Result<Tensor> {
        self.rotated_heads_last(&self.query_heads(&self.maps.queries(x, before)?)?, start)
    }

    /// Keys and values as in [`Self::project_rotated`], of `x (batch, len, d_model)`, whose first position is
    /// `start`.
    pub(super) fn keys_and_values(
        &self,
        x: &Tensor,
        start: usize,
        before: &mut Before<'_>,
    ) -> Result<(Tensor, Tensor)> {
        let [key, value] = self.maps.keys_and_values(x, before)?;
        let (key, value) = self.key_value_heads(&key, &value)?;
        Ok((self.rotated_heads_last(&key, start)?, value))
    }

    /// Queries or keys `(batch, heads, len, head_dim)`, rotated if positions are rotary; `start` is the
    /// first position.
    pub(super) fn rotated(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        let Some(rotary) = &self.rotary else { return Ok(x.clone()) };
        rotary.forward(x, start)
    }

    /// The same of `(batch, len, heads, head_dim)`.
    fn rotated_heads_last(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        let Some(rotary) = &self.rotary else { return Ok(x.clone()) };
        rotary.forward_heads_last(x, start)
    }

    fn project_heads_last(&self, input: &AttentionInput<'_>) -> Result<[Tensor; 3]> {
        let [query, key, value] = self.maps.project(input)?;
        let query = self.query_heads(&query)?;
        let (key, value) = self.key_value_heads(&key, &value)?;
        Ok([query, key, value])
    }

    fn query_heads(&self, query: &Tensor) -> Result<Tensor> {
        let gain = self.gains.as_ref().map(|[query, _key]| query);
        normalised_heads(query, self.n_heads, gain)
    }

    fn key_value_heads(&self, key: &Tensor, value: &Tensor) -> Result<(Tensor, Tensor)> {
        let gain = self.gains.as_ref().map(|[_query, key]| key);
        let key = normalised_heads(key, self.n_kv_heads, gain)?;
        Ok((key, split_heads(value, self.n_kv_heads)?))
    }
}

/// `(batch, len, width)` → `(batch, len, n_heads, head_dim)`, normalised if there is a `gain`.
fn normalised_heads(x: &Tensor, n_heads: usize, gain: Option<&Gain>) -> Result<Tensor> {
    match gain {
        Some(gain) => gain.forward(x, n_heads),
        None => split_heads(x, n_heads),
    }
}

/// The map W^O back into the residual stream.
pub(super) fn output(spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Linear> {
    let weight = spec.init.residual_weight(spec.d_heads());
    Linear::build([spec.d_heads(), spec.d_model], spec.bias, weight, &vb.pp("output"))
}

/// The cost of the four maps. Their activations are queries, keys and values before and after splitting the
/// heads, the scaled queries, the context before and after joining the heads, and the output.
pub(super) fn cost(spec: &AttentionSpec<'_>, lens: [usize; 2]) -> AttentionCost {
    cost_with(spec, Heads::default(), lens)
}

/// As [`cost`], for maps built with `heads`.
pub(super) fn cost_with(
    spec: &AttentionSpec<'_>,
    heads: Heads,
    [q_len, kv_len]: [usize; 2],
) -> AttentionCost {
    let (d_model, q_len, kv_len) = (spec.d_model as f64, q_len as f64, kv_len as f64);
    let (width, kv_width) = (spec.d_heads() as f64, heads.kv_width(spec) as f64);
    let bias = f64::from(u8::from(spec.bias == Bias::With));
    let channels = spec.d_heads().saturating_add(heads.kv_width(spec).saturating_mul(2));
    let maps = AttentionCost {
        parameters: 2. * (width + kv_width) * d_model + bias * (width + 2. * kv_width + d_model),
        flops: 4. * d_model * (width * q_len + kv_width * kv_len),
        activations: (5. * width + d_model) * q_len + 4. * kv_width * kv_len,
    } + short_convolution::cost(spec, channels, kv_len as usize);
    let Some(norm) = heads.qk_norm else { return maps };
    let (query, key) = (width * q_len, kv_width * kv_len);
    maps + AttentionCost {
        parameters: norm.over.n_parameters(spec.head_dim() as f64, [width, kv_width]),
        // A square, a sum, and two products for each number.
        flops: 4. * (query + key),
        activations: query + key,
    }
}

/// `(batch, len, width)` → `(batch, len, n_heads, head_dim)`
fn split_heads(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (batch, len, width) = x.dims3()?;
    reshape(x, (batch, len, n_heads, width / n_heads))
}

/// Concat(head₁, …, head_h): `(batch, len, n_heads, head_dim)` → `(batch, len, n_heads·head_dim)`
pub(super) fn concat_heads(x: &Tensor) -> Result<Tensor> {
    let (batch, len, n_heads, head_dim) = x.dims4()?;
    reshape(x, (batch, len, n_heads * head_dim))
}

/// The same of heads-first tensors: `(batch, n_heads, len, head_dim)` → `(batch, len, n_heads·head_dim)`
pub(super) fn merge_heads(x: &Tensor) -> Result<Tensor> {
    concat_heads(&swap_axes(x)?)
}

/// `(batch, n_kv_heads, len, head_dim)` → `(batch, n_heads, len, head_dim)`: repeats each head of keys or
/// values for all heads of queries that share it.
pub(super) fn repeat_heads(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (batch, n_kv_heads, len, head_dim) = x.dims4()?;
    if n_kv_heads == n_heads {
        return Ok(x.clone());
    }
    let group = n_heads / n_kv_heads;
    let repeated = x.unsqueeze(2)?.broadcast_as((batch, n_kv_heads, group, len, head_dim))?;
    repeated.reshape((batch, n_heads, len, head_dim))
}
