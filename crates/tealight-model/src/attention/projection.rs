//! The linear maps around an attention: into queries, keys and values, and out of the heads.
//!
//! Heads of queries may share heads of keys and values, in groups (Ainslie et al. 2023,
//! <https://arxiv.org/abs/2305.13245>) or all of them (Shazeer 2019,
//! <https://arxiv.org/abs/1911.02150>): fewer parameters, and a cache that is smaller by the same
//! factor.
//!
//! Queries and keys may be normalised, so that no training run can drive the scores up without
//! bound (Henry et al. 2020, <https://arxiv.org/abs/2010.04245>; Dehghani et al. 2023,
//! <https://arxiv.org/abs/2302.05442>):
//!
//! ```text
//! q ← g_q ⊙ q / √(mean(q²) + ε),   k ← g_k ⊙ k / √(mean(k²) + ε)        within each head
//! ```
//!
//! The former normalise by the length, with one learnt scale for the scores; the latter by mean and
//! variance. We take the root mean square, with a gain for each feature that all heads share.

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};
use tealight_ops::norm::rms_norm;
use tealight_ops::reshape;
use tealight_ops::swap_axes::swap_axes;

use super::{AttentionCost, AttentionInput, AttentionSpec, Reads};
use crate::{Bias, BuildResult, Linear};

/// The maps W^Q, W^K and W^V, with heads split off.
#[derive(Debug)]
pub struct Projection {
    query: Linear,
    key: Linear,
    value: Linear,
    norm: Option<QueryKeyNorm>,
    n_heads: usize,
    n_kv_heads: usize,
    reads: Reads,
}

/// Settings of the maps, which several kinds share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Heads {
    /// Heads of keys and values; `None`: as many as of queries.
    pub n_kv_heads: Option<usize>,
    /// Whether queries and keys are normalised.
    pub norm: Norm,
}

/// Whether queries and keys are normalised within each head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Norm {
    /// As they are projected.
    #[default]
    None,
    /// To a root mean square of one, times a learnt gain.
    QueryKey,
}

impl From<bool> for Norm {
    fn from(qk_norm: bool) -> Self {
        if qk_norm { Self::QueryKey } else { Self::None }
    }
}

impl Heads {
    /// The number of heads of keys and values, or the reason why there cannot be so many.
    fn n_kv_heads(self, spec: &AttentionSpec<'_>) -> BuildResult<usize> {
        let n_kv_heads = self.n_kv_heads.unwrap_or(spec.n_heads);
        spec.positive("n_kv_heads", n_kv_heads)?;
        if spec.n_heads.is_multiple_of(n_kv_heads) {
            return Ok(n_kv_heads);
        }
        let n_heads = spec.n_heads;
        Err(spec.invalid(
            "n_kv_heads",
            &format!("= {n_kv_heads} does not divide `model.n_heads` = {n_heads}"),
        ))
    }

    /// The width of all keys together. More heads than those of queries cannot be built, and it is not
    /// for their memory that they are refused.
    fn kv_width(self, spec: &AttentionSpec<'_>) -> usize {
        let n_kv_heads = self.n_kv_heads.map_or(spec.n_heads, |n| n.min(spec.n_heads));
        n_kv_heads.saturating_mul(spec.head_dim())
    }
}

impl Projection {
    /// Builds `query`, `key` and `value`, each d_model → n_heads·head_dim.
    pub fn build(spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Self> {
        Self::of_heads(spec, vb, None, spec.n_heads)
    }

    /// Builds `query`, and `key` and `value` with as many heads as `heads` says; and the gains
    /// `query_norm` and `key_norm (head_dim)`, if it says so.
    pub fn with(spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>, heads: Heads) -> BuildResult<Self> {
        let n_kv_heads = heads.n_kv_heads(spec)?;
        let norm = match heads.norm {
            Norm::None => None,
            Norm::QueryKey => Some(QueryKeyNorm::build(spec, vb)?),
        };
        Ok(Self::of_heads(spec, vb, norm, n_kv_heads)?)
    }

    fn of_heads(
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
        norm: Option<QueryKeyNorm>,
        n_kv_heads: usize,
    ) -> Result<Self> {
        let linear = |name, width| {
            let weight = spec.init.weight(spec.d_model);
            Linear::build([spec.d_model, width], spec.bias, weight, &vb.pp(name))
        };
        let kv_width = n_kv_heads * spec.head_dim();
        let query = linear("query", spec.d_heads())?;
        let (key, value) = (linear("key", kv_width)?, linear("value", kv_width)?);
        Ok(Self { query, key, value, norm, n_heads: spec.n_heads, n_kv_heads, reads: spec.reads })
    }

    /// Which positions the layer reads.
    pub fn reads(&self) -> Reads {
        self.reads
    }

    /// Queries of `x`, `(batch, n_heads, q_len, head_dim)`, and keys and values of the source,
    /// `(batch, n_kv_heads, kv_len, head_dim)`, contiguous.
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

    /// As [`Self::project`], with the heads where the maps put them: `(batch, len, heads, head_dim)`.
    pub fn project_heads_last(
        &self,
        input: &AttentionInput<'_>,
    ) -> Result<(Tensor, Tensor, Tensor)> {
        let source = input.source(self.reads)?;
        if self.reads == Reads::Memory {
            let (key, value) = self.keys_and_values_heads_last(source)?;
            return Ok((self.queries_heads_last(input.x)?, key, value));
        }
        let maps = [&self.query, &self.key, &self.value];
        let [query, key, value] = Linear::forward_all(maps, source)?;
        Ok((self.query_heads(&query)?, self.key_heads(&key)?, heads(&value, self.n_kv_heads)?))
    }

    /// `(batch, len, d_model)` → `(batch, len, n_heads, head_dim)`: the heads where the map puts them.
    pub fn queries_heads_last(&self, x: &Tensor) -> Result<Tensor> {
        self.query_heads(&self.query.forward(x)?)
    }

    /// `(batch, len, d_model)` → two of `(batch, len, n_kv_heads, head_dim)`.
    pub fn keys_and_values_heads_last(&self, x: &Tensor) -> Result<(Tensor, Tensor)> {
        let [key, value] = Linear::forward_all([&self.key, &self.value], x)?;
        Ok((self.key_heads(&key)?, heads(&value, self.n_kv_heads)?))
    }

    fn query_heads(&self, query: &Tensor) -> Result<Tensor> {
        let query = heads(query, self.n_heads)?;
        self.norm.as_ref().map_or(Ok(query.clone()), |norm| norm.query(&query))
    }

    fn key_heads(&self, key: &Tensor) -> Result<Tensor> {
        let key = heads(key, self.n_kv_heads)?;
        self.norm.as_ref().map_or(Ok(key.clone()), |norm| norm.key(&key))
    }
}

/// The gains of queries and keys.
#[derive(Debug)]
struct QueryKeyNorm {
    query: Tensor,
    key: Tensor,
}

impl QueryKeyNorm {
    const EPSILON: f64 = 1e-6;

    fn build(spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Self> {
        let gain = |name| vb.pp(name).get_with_hints(spec.head_dim(), "weight", init::ONE);
        Ok(Self { query: gain("query_norm")?, key: gain("key_norm")? })
    }

    fn query(&self, query: &Tensor) -> Result<Tensor> {
        rms_norm(query, &self.query, Self::EPSILON)
    }

    fn key(&self, key: &Tensor) -> Result<Tensor> {
        rms_norm(key, &self.key, Self::EPSILON)
    }
}

/// The map W^O back into the residual stream.
pub fn output(spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> Result<Linear> {
    let weight = spec.init.residual_weight(spec.d_heads());
    Linear::build([spec.d_heads(), spec.d_model], spec.bias, weight, &vb.pp("output"))
}

/// What the four maps cost: their activations are queries, keys and values as projected and in
/// heads, the scaled queries, the context twice, and the output.
pub fn cost(spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
    cost_with(spec, Heads::default(), q_len, kv_len)
}

/// As [`cost`], of maps built [`with`](Projection::with) `heads`.
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
    match heads.norm {
        Norm::None => maps,
        Norm::QueryKey => {
            let (query, key) = (width * q_len, kv_width * kv_len);
            maps + AttentionCost {
                parameters: 2. * spec.head_dim() as f64,
                // A square, a sum, and two products for each number.
                flops: 4. * (query + key),
                activations: query + key,
            }
        }
    }
}

/// `(batch, len, width)` → `(batch, len, n_heads, head_dim)`
fn heads(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (batch, len, width) = x.dims3()?;
    reshape(x, (batch, len, n_heads, width / n_heads))
}

/// `(batch, len, n_heads, head_dim)` → `(batch, len, n_heads·head_dim)`
pub fn side_by_side(x: &Tensor) -> Result<Tensor> {
    let (batch, len, n_heads, head_dim) = x.dims4()?;
    reshape(x, (batch, len, n_heads * head_dim))
}

/// `(batch, n_heads, len, head_dim)` → `(batch, len, n_heads·head_dim)`
pub fn merge_heads(x: &Tensor) -> Result<Tensor> {
    side_by_side(&swap_axes(x)?)
}

/// `(batch, n_kv_heads, len, head_dim)` → `(batch, n_heads, len, head_dim)`: each head of keys or
/// values for every head of queries that shares it.
pub fn repeat_heads(x: &Tensor, n_heads: usize) -> Result<Tensor> {
    let (batch, n_kv_heads, len, head_dim) = x.dims4()?;
    if n_kv_heads == n_heads {
        return Ok(x.clone());
    }
    let group = n_heads / n_kv_heads;
    let repeated = x.unsqueeze(2)?.broadcast_as((batch, n_kv_heads, group, len, head_dim))?;
    repeated.reshape((batch, n_heads, len, head_dim))
}
