//! Linear attention (Katharopoulos et al. 2020, <https://arxiv.org/abs/2006.16236>).
//!
//! ```text
//! V'ᵢ = φ(Qᵢ)ᵀ Σⱼ φ(Kⱼ) Vⱼᵀ / φ(Qᵢ)ᵀ Σⱼ φ(Kⱼ)              eq. (5); causal, over j ≤ i: eq. (9)
//! φ(x) = elu(x) + 1 = x + 1 for x > 0, eˣ elsewhere                                      eq. (7)
//! ```
//!
//! The sums over keys and values do not depend on the query, so time and memory grow linearly with the
//! sequence. A causal layer is a recurrent network (§3.4): its decoding state is the two sums, whose
//! size does not depend on the length.
//!
//! Cost: O(seq_len·d_model·head_dim) time, O(seq_len·d_model) memory.
//!
//! `feature_map = "taylor"` has other features, see [`taylor`].
//!
//! It is computed with ln φ(x) = min(x, 0) + ln(1 + max(x, 0)), so that mean and gradient stay finite where
//! eˣ underflows ([`tealight_ops::linear_attention`]). There are no scores to add a bias to, and rotated
//! features would not be positive, so score biases and rotary positions are refused. Dropout acts on the
//! context, as no weights are formed.

pub(super) mod onnx;
pub mod taylor;

use std::fmt;

use candle_core::{D, Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::activation::relu;
use tealight_ops::linear_attention::{self, linear_attention};
use tealight_ops::swap_axes::swap_axes;

use super::decoding::refuse_score_bias;
use super::onnx::{Layer, Output, heads};
use super::projection::{self, Heads, Projection, merge_heads};
use super::running_mean::RunningMean;
use super::short_convolution::Before;
use super::state::State;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, BoxState,
    DecodingState, Memory, Reads,
};
use crate::choice::names::names;
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::onnx_graph::{OnnxError, OnnxResult, Value};

settings! {
    /// `[model.attention] kind = "linear"`
    pub struct Config {
        /// φ
        pub feature_map: Features = Features::Elu,
        /// Channels of queries and keys in each head under `feature_map = "taylor"`, which makes features of their pairs;
        /// 16 when absent.
        pub feature_dim: Option<usize> = None,
        /// Tokens that convolutions behind the maps read, in a causal layer; 0: no convolution.
        pub conv_size: usize = 0,
    }
}

names! {
    /// What turns queries and keys into features.
    pub enum Features {
        /// elu(x) + 1 of each channel (Katharopoulos et al. 2020).
        "elu" => Elu,
        /// 1, x and all products of two channels: the second order of e^(q·k) (Based, Arora et al. 2024).
        "taylor" => Taylor,
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        spec.refuse_rotary("linear", "its features would not stay positive")?;
        spec.refuse_score_bias("linear", "it forms no scores")?;
        spec.refuse_segments("linear", "all its queries read one sum over the keys")?;
        match (self.feature_map, self.feature_dim) {
            (Features::Elu, None) => Ok(Box::new(LinearAttention::build(Elu, spec, vb)?)),
            (Features::Elu, Some(n)) => {
                let rule = format!("= {n} has no meaning under `feature_map` = \"elu\"");
                Err(spec.invalid("feature_dim", &rule))
            }
            (Features::Taylor, n) => {
                Ok(Box::new(taylor::build(n.unwrap_or(taylor::FEATURE_DIM), spec, vb)?))
            }
        }
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, kv_len: usize) -> AttentionCost {
        if self.feature_map == Features::Taylor {
            let feature_dim = self.feature_dim.unwrap_or(taylor::FEATURE_DIM);
            return taylor::cost(feature_dim, spec, [q_len, kv_len]);
        }
        let numbers = spec.d_heads() as f64 * (q_len + kv_len) as f64;
        let features = AttentionCost {
            parameters: 0.,
            // min, max, 1 + max, its logarithm, and the sum.
            flops: 5. * numbers,
            activations: 4. * numbers,
        };
        cost(spec.head_dim(), spec, [q_len, kv_len]) + features
    }

    fn conv_size(&self) -> usize {
        self.conv_size
    }

    fn onnx(&self, layer: &Layer<'_>, x: &Value) -> OnnxResult<Option<Output>> {
        if self.feature_map == Features::Taylor {
            let reason = "its features may be negative, and the graph of `linear` takes logarithms";
            return Err(OnnxError::unsupported(
                "`model.attention.feature_map` = \"taylor\"",
                reason,
            ));
        }
        let graph = layer.graph();
        let log = |x: &Value| {
            let positive = graph.map("Relu", x);
            let above = graph.map("Log", &graph.add(&positive, &graph.number(1.)));
            graph.add(&graph.sub(x, &positive), &above)
        };
        let qkv = heads::project(layer, x, Heads::default())?;
        let logs = [log(&qkv.query), log(&qkv.key)];
        onnx::average(layer, qkv, &logs)
    }
}

/// ln (elu(x) + 1)
#[derive(Debug)]
struct Elu;

impl FeatureMap for Elu {
    fn log_query(&self, query: &Tensor) -> Result<Tensor> {
        let positive = relu(query)?;
        (query - &positive)? + (positive + 1.)?.log()?
    }

    fn log_key(&self, key: &Tensor) -> Result<Tensor> {
        self.log_query(key)
    }
}

/// A map φ to non-negative features, given by its logarithm.
pub(super) trait FeatureMap: fmt::Debug + Send + Sync {
    /// `(batch, n_heads, len, head_dim)` → `(batch, n_heads, len, n_features)`: ln φ(q) up to a constant for
    /// each query, which cancels.
    fn log_query(&self, query: &Tensor) -> Result<Tensor>;

    /// `(batch, n_heads, len, head_dim)` → `(batch, n_heads, len, n_features)`: ln φ(k) up to one constant for
    /// the whole layer, which cancels.
    fn log_key(&self, key: &Tensor) -> Result<Tensor>;
}

/// The cost of a layer without its feature map.
pub(super) fn cost(n_features: usize, spec: &AttentionSpec<'_>, lens: [usize; 2]) -> AttentionCost {
    let (n_features, positions) = (n_features as f64, (lens[0] + lens[1]) as f64);
    let core = AttentionCost {
        parameters: 0.,
        // An outer product for each key, a matrix–vector product for each query.
        flops: 2. * n_features * spec.d_heads() as f64 * positions,
        activations: n_features * spec.n_heads as f64 * positions,
    };
    projection::cost(spec, lens) + core
}

/// Linear attention with any feature map.
#[derive(Debug)]
pub(super) struct LinearAttention<F> {
    projection: Projection,
    features: F,
    output: Linear,
    dropout: Dropout,
}

impl<F: FeatureMap> LinearAttention<F> {
    pub(super) fn build(
        features: F,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        Ok(Self {
            projection: Projection::build(spec, vb, Heads::default())?,
            features,
            output: projection::output(spec, vb)?,
            dropout: Dropout::new(spec.dropout, vb),
        })
    }

    /// ln φ(K) and V.
    fn log_key_value(&self, source: &Tensor, before: &mut Before<'_>) -> Result<(Tensor, Tensor)> {
        let (key, value) = self.projection.keys_and_values(source, 0, before)?;
        Ok((self.features.log_key(&swap_axes(&key)?)?, swap_axes(&value)?))
    }

    fn log_query(&self, x: &Tensor, before: &mut Before<'_>) -> Result<Tensor> {
        self.features.log_query(&swap_axes(&self.projection.queries(x, 0, before)?)?)
    }

    /// ln φ(Q), ln φ(K) and V: `(batch, n_heads, len, n_features)`, twice, and `(batch, n_heads, len, head_dim)`.
    fn project(&self, input: &AttentionInput<'_>) -> Result<[Tensor; 3]> {
        let [query, key, value] = self.projection.project(input)?;
        Ok([self.features.log_query(&query)?, self.features.log_key(&key)?, value])
    }
}

impl<F: FeatureMap> Attention for LinearAttention<F> {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let padding = input.mask.padding_only()?;
        let [query, key, value] = self.project(input)?;
        let context =
            linear_attention(&query, &key, &value, self.projection.reads().reach(), padding)?;
        let context = self.dropout.forward(&merge_heads(&context)?, input.mode)?;
        self.output.forward(&context)
    }

    fn heads(&self, input: &AttentionInput<'_>) -> Result<Option<[Tensor; 3]>> {
        self.projection.project_rotated(input).map(Some)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let padding = input.mask.padding_only()?;
        let [query, key, _value] = self.project(input)?;
        linear_attention::reference::weights(&query, &key, self.projection.reads().reach(), padding)
    }

    fn decoding_state<'a>(&'a self, memory: Option<Memory<'a>>) -> Result<Option<BoxState<'a>>> {
        let sums = match (self.projection.reads(), memory) {
            (Reads::Past, None) => None,
            (Reads::Memory, Some(Memory { states, mask })) => {
                let (key, value) = self.log_key_value(states, &mut Before::whole(mask))?;
                Some(sum(&key, &value, mask.padding_only()?)?)
            }
            _ => return Ok(None),
        };
        Ok(Some(Box::new(Decoding { attention: self, sums, past: State::default() })))
    }
}

/// The decoding state: the sums over the past, or over the memory.
#[derive(Debug)]
struct Decoding<'a, F> {
    attention: &'a LinearAttention<F>,
    sums: Option<RunningMean>,
    /// What the convolutions behind the maps still read.
    past: State,
}

impl<F: FeatureMap> DecodingState for Decoding<'_, F> {
    fn step(&mut self, x: &Tensor, score_bias: Option<&Tensor>) -> Result<Tensor> {
        refuse_score_bias(score_bias)?;
        let query = self.attention.log_query(x, &mut Before::after(&mut self.past))?;
        let context = match (self.attention.projection.reads(), &self.sums) {
            (Reads::Memory, Some(memory)) => averages(memory, &query)?,
            _ => self.read_past(x, &query)?,
        };
        self.attention.output.forward(&merge_heads(&context)?)
    }

    fn kept(&mut self) -> Vec<&mut Tensor> {
        let sums = self.sums.iter_mut().flat_map(RunningMean::tensors_mut);
        sums.chain(self.past.tensors_mut()).collect()
    }
}

impl<F: FeatureMap> Decoding<'_, F> {
    /// The new positions, one after the other; each is added to the sums before its query reads them.
    fn read_past(&mut self, x: &Tensor, query: &Tensor) -> Result<Tensor> {
        let mut before = Before::after(&mut self.past);
        let (key, value) = self.attention.log_key_value(x, &mut before)?;
        let (_batch, _n_heads, n_new, _n_features) = key.dims4()?;
        let mut contexts = Vec::with_capacity(n_new);
        for i in 0..n_new {
            let new = sum(&key.narrow(2, i, 1)?, &value.narrow(2, i, 1)?, None)?;
            let sums = match &self.sums {
                Some(past) => past.merged(&new)?,
                None => new,
            };
            contexts.push(averages(&sums, &query.narrow(2, i, 1)?)?);
            self.sums = Some(sums);
        }
        Tensor::cat(&contexts, 2)
    }
}

/// The sums over all positions of `log_key (batch, n_heads, len, n_features)` and `value (batch, n_heads, len,
/// head_dim)` that are not padding: Σⱼ φ(Kⱼ) Vⱼᵀ in the numerator, `(batch, n_heads, n_features, head_dim)`, and
/// Σⱼ φ(Kⱼ) in the denominator, `(batch, n_heads, n_features, 1)`.
fn sum(log_key: &Tensor, value: &Tensor, key_padding_mask: Option<&Tensor>) -> Result<RunningMean> {
    let mut log_key = log_key.clone();
    if let Some(mask) = key_padding_mask {
        let (batch, len) = mask.dims2()?;
        let mask = mask.reshape((batch, 1, len, 1))?.broadcast_as(log_key.shape())?;
        let nothing = log_key.ones_like()?.affine(0., f64::NEG_INFINITY)?;
        log_key = mask.where_cond(&nothing, &log_key)?;
    }
    let log_key = log_key.transpose(2, 3)?.contiguous()?; // (batch, n_heads, n_features, len)
    let max = log_key.max_keepdim(D::Minus1)?;
    // Where every key is padding the maximum is −∞; any finite number gives the same sums of zero.
    let max = max.eq(f64::NEG_INFINITY)?.where_cond(&max.zeros_like()?, &max)?;
    let features = log_key.broadcast_sub(&max)?.exp()?;
    let denominator = features.sum_keepdim(D::Minus1)?;
    Ok(RunningMean { max, numerator: features.matmul(&value.contiguous()?)?, denominator })
}

/// Eq. (5) with these `sums`: `log_query (batch, n_heads, len, n_features)` → `(batch, n_heads, len, head_dim)`;
/// zeros where the sums are over no key.
fn averages(sums: &RunningMean, log_query: &Tensor) -> Result<Tensor> {
    let logs = log_query.broadcast_add(&sums.max.transpose(2, 3)?)?;
    let features = logs.broadcast_sub(&logs.max_keepdim(D::Minus1)?)?.exp()?;
    let total = features.matmul(&sums.denominator)?; // (batch, n_heads, len, 1)
    let total = (&total + total.eq(0.)?.to_dtype(total.dtype())?)?;
    features.matmul(&sums.numerator)?.broadcast_div(&total)
}
