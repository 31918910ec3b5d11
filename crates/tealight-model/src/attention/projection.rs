//! The linear maps around an attention: W^Q, W^K and W^V into heads, and W^O out of them.
//!
//! Several heads of queries may share one head of keys and values: groups of them (grouped-query, Ainslie
//! et al. 2023, <https://arxiv.org/abs/2305.13245>) or all of them (multi-query, Shazeer 2019,
//! <https://arxiv.org/abs/1911.02150>). Parameters and decoding cache shrink by the same factor.
//!
//! Queries and keys may be normalised, which bounds the scores (Henry et al. 2020,
//! <https://arxiv.org/abs/2010.04245>; Dehghani et al. 2023, <https://arxiv.org/abs/2302.05442>):
//!
//! ```text
//! q ← g_q ⊙ q / √(mean(q²) + ε),   k ← g_k ⊙ k / √(mean(k²) + ε)        within each head
//! ```
//!
//! Henry et al. divide by the length and learn one scale for the scores; Dehghani et al. use LayerNorm. Here
//! it is the root mean square, with a gain for each feature, which all heads share.

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};
use tealight_ops::norm::rms_norm;
use tealight_ops::reshape;
use tealight_ops::swap_axes::swap_axes;

use super::{AttentionCost, AttentionInput, AttentionSpec, Reads};
use crate::error::BuildResult;
use crate::layers::linear::{Bias, Linear};
use crate::position::rotary::Rotary;

/// ε of the normalisation of queries and keys.
const EPSILON: f64 = 1e-6;

/// The maps W^Q, W^K and W^V into heads.
#[derive(Debug)]
pub struct Projection {
    query: Linear,
    key: Linear,
    value: Linear,
    /// The gains g_q and g_k, `(head_dim)`, if queries and keys are normalised.
    gains: Option<[Tensor; 2]>,
    n_heads: usize,
    n_kv_heads: usize,
    reads: Reads,
}

/// Settings of the maps that several kinds share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    /// Heads of keys and values; `None`: as many as of queries.
    pub n_kv_heads: Option<usize>,
    /// Normalise queries and keys within each head.
    pub qk_norm: bool,
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
    /// Builds `query`, `key` and `value`, each d_model → n_heads·head_dim.
    pub fn build(spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<Self> {
        Self::with(spec, vb, Heads::default())
    }

    /// Builds `query`, and `key` and `value` with `heads.n_kv_heads`; under `heads.qk_norm` also the gains
    /// `query_norm` and `key_norm (head_dim)`.
    pub fn with(spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>, heads: Heads) -> BuildResult<Self> {
        let n_kv_heads = heads.n_kv_heads(spec)?;
        let gain = |name| vb.pp(name).get_with_hints(spec.head_dim(), "weight", init::ONE);
        let gains = || Result::Ok([gain("query_norm")?, gain("key_norm")?]);
        let gains = heads.qk_norm.then(gains).transpose()?;
        let linear = |name, width| {
            let weight = spec.init.weight(spec.d_model);
            Linear::build([spec.d_model, width], spec.bias, weight, &vb.pp(name))
        };
        let kv_width = n_kv_heads * spec.head_dim();
        Ok(Self {
            query: linear("query", spec.d_heads())?,
            key: linear("key", kv_width)?,
            value: linear("value", kv_width)?,
            gains,
            n_heads: spec.n_heads,
            n_kv_heads,
            reads: spec.reads,
        })
    }

    /// Which positions the layer reads.
    pub fn reads(&self) -> Reads {
        self.reads
    }

    /// Queries of `x`, `(batch, n_heads, q_len, head_dim)`, and keys and values of the sequence that is
    /// read, `(batch, n_kv_heads, kv_len, head_dim)`, contiguous.
    pub fn project(&self, input: &AttentionInput<'_>) -> Result<(Tensor, Tensor, Tensor)> {
        let (query, key, value) = self.project_heads_last(input)?;
        Ok((swap_axes(&query)?, swap_axes(&key)?, swap_axes(&value)?))
    }

    /// `(batch, len, d_model)` → `(batch, n_heads, len, head_dim)`, contiguous.
    pub fn queries(&self, x: &Tensor) -> Result<Tensor> {
        swap_axes(&self.queries_heads_last(x)?)
    }

    /// `(batch, len, d_model)` → two of `(batch, n_kv_heads, len, head_dim)`, contiguous.
    pub fn keys_and_values(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let (key, value) = self.keys_and_values_heads_last(x)?;
        Ok((swap_axes(&key)?, swap_axes(&value)?))
    }

    /// Queries, keys and values with the axes in the order in which the maps give them, `(batch, len,
    /// heads, head_dim)`, which costs no transposition; queries and keys rotated, if there is a `rotary`.
    pub fn project_rotated(
        &self,
        input: &AttentionInput<'_>,
        rotary: Option<&Rotary>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let (query, key, value) = self.project_heads_last(input)?;
        Ok((rotated(query, rotary, 0)?, rotated(key, rotary, 0)?, value))
    }

    /// `(batch, len, d_model)` → `(batch, len, n_heads, head_dim)`
    pub fn queries_heads_last(&self, x: &Tensor) -> Result<Tensor> {
        self.query_heads(&self.query.forward(x)?)
    }

    /// `(batch, len, d_model)` → two of `(batch, len, n_kv_heads, head_dim)`
    pub fn keys_and_values_heads_last(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let [key, value] = Linear::forward_all([&self.key, &self.value], x)?;
        self.key_value_heads(&key, &value)
    }

    fn project_heads_last(&self, input: &AttentionInput<'_>) -> Result<(Tensor, Tensor, Tensor)> {
        let source = input.source(self.reads)?;
        if self.reads == Reads::Memory {
            let (key, value) = self.keys_and_values_heads_last(source)?;
            return Ok((self.queries_heads_last(input.x)?, key, value));
        }
        let maps = [&self.query, &self.key, &self.value];
        let [query, key, value] = Linear::forward_all(maps, source)?;
        let query = self.query_heads(&query)?;
        let (key, value) = self.key_value_heads(&key, &value)?;
        Ok((query, key, value))
    }

    fn query_heads(&self, query: &Tensor) -> Result<Tensor> {
        let gain = self.gains.as_ref().map(|[query, _key]| query);
        normalised(split_heads(query, self.n_heads)?, gain)
    }

    fn key_value_heads(&self, key: &Tensor, value: &Tensor) -> Result<(Tensor, Tensor)> {
        let gain = self.gains.as_ref().map(|[_query, key]| key);
        let key = normalised(split_heads(key, self.n_kv_heads)?, gain)?;
        Ok((key, split_heads(value, self.n_kv_heads)?))
    }
}

/// g ⊙ x / √(mean(x²) + ε) over the last axis, if there is a `gain`.
fn normalised(x: Tensor, gain: Option<&Tensor>) -> Result<Tensor> {
    match gain {
        Some(gain) => rms_norm(&x, gain, EPSILON),
        None => Ok(x),
    }
}

/// Queries or keys `(batch, len, heads, head_dim)`, rotated if there is a `rotary`; `start` is the first
/// position.
pub fn rotated(x: Tensor, rotary: Option<&Rotary>, start: usize) -> Result<Tensor> {
    match rotary {
        Some(rotary) => rotary.forward_heads_last(&x, start),
        None => Ok(x),
    }
}

/// The map W^O back into the residual stream.
pub fn output(spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Linear> {
    let weight = spec.init.residual_weight(spec.d_heads());
    Linear::build([spec.d_heads(), spec.d_model], spec.bias, weight, &vb.pp("output"))
}

/// The cost of the four maps. Their activations are queries, keys and values before and after splitting the
/// heads, the scaled queries, the context before and after joining the heads, and the output.
pub fn cost(spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
    cost_with(spec, Heads::default(), q_len, kv_len)
}

/// As [`cost`], for maps built [`with`](Projection::with) `heads`.
pub fn cost_with(
    spec: &AttentionSpec<'_>,
    heads: Heads,
    q_len: usize,
    kv_len: usize,
) -> AttentionCost {
    let (d_model, q_len, kv_len) = (spec.d_model as f64, q_len as f64, kv_len as f64);
    let (width, kv_width) = (spec.d_heads() as f64, heads.kv_width(spec) as f64);
    let bias = f64::from(u8::from(spec.bias == Bias::With));
    let maps = AttentionCost {
        parameters: 2. * (width + kv_width) * d_model + bias * (width + 2. * kv_width + d_model),
        flops: 4. * d_model * (width * q_len + kv_width * kv_len),
        activations: (5. * width + d_model) * q_len + 4. * kv_width * kv_len,
    };
    if !heads.qk_norm {
        return maps;
    }
    let (query, key) = (width * q_len, kv_width * kv_len);
    maps + AttentionCost {
        parameters: 2. * spec.head_dim() as f64,
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
pub fn concat_heads(x: &Tensor) -> Result<Tensor> {
    let (batch, len, n_heads, head_dim) = x.dims4()?;
    reshape(x, (batch, len, n_heads * head_dim))
}

/// The same of heads-first tensors: `(batch, n_heads, len, head_dim)` → `(batch, len, n_heads·head_dim)`
pub fn merge_heads(x: &Tensor) -> Result<Tensor> {
    concat_heads(&swap_axes(x)?)
}

/// `(batch, n_kv_heads, len, head_dim)` → `(batch, n_heads, len, head_dim)`: repeats each head of keys or
/// values for all heads of queries that share it.
pub fn repeat_heads(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (batch, n_kv_heads, len, head_dim) = x.dims4()?;
    if n_kv_heads == n_heads {
        return Ok(x.clone());
    }
    let group = n_heads / n_kv_heads;
    let repeated = x.unsqueeze(2)?.broadcast_as((batch, n_kv_heads, group, len, head_dim))?;
    repeated.reshape((batch, n_heads, len, head_dim))
}
