//! The parts that the kinds of AFT share, the Attention Free Transformer (Zhai et al. 2021,
//! <https://arxiv.org/abs/2105.14103>): queries gate a weighted mean of the values that does not depend on them.
//!
//! ```text
//! Q = X W^Q,  K = X W^K,  V = X W^V;      output = (σ(Q) ⊙ context) W^O
//! ```
//!
//! No scores compare queries with keys, so rotary positions and score biases are refused. Dropout acts on the gated
//! context. The bias of the key map adds the same number to a channel's keys at all positions, so it has no effect;
//! its gradient is zero up to rounding.

use std::fmt;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::Reach;
use tealight_ops::activation::Function;
use tealight_ops::aft;
use tealight_ops::gate::gated;

use super::projection::{self, Maps};
use super::short_convolution;
use super::{Attention, AttentionCost, AttentionInput, AttentionSpec};
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};
use crate::mode::Mode;

/// The learnt biases w of a kind of AFT, for pairs of positions.
pub(super) trait PairBiases: fmt::Debug + Send + Sync {
    /// The mean of V with weights exp(K + w), `(batch, q_len, d_model)`; 1 in `padding (batch, kv_len)` has no
    /// weight. Q, K and V are `(batch, q_len, d_model)`, `(batch, kv_len, key_width)` and `(batch, kv_len,
    /// d_model)`.
    fn mean(&self, qkv: &[Tensor; 3], padding: Option<&Tensor>, reach: Reach) -> Result<Tensor>;

    /// w `(n_heads or 1, q_len, kv_len)`
    fn dense(&self, q_len: usize, kv_len: usize) -> Result<Tensor>;
}

/// σ(Q) ⊙ the mean of V with weights exp(K + w).
#[derive(Debug)]
pub(super) struct Aft<B> {
    pub(super) gate: Gate,
    pub(super) biases: B,
}

impl<B: PairBiases> Attention for Aft<B> {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let qkv = self.gate.maps.project(input)?;
        let padding = input.mask.padding_only()?;
        let context = self.biases.mean(&qkv, padding, self.gate.reach())?;
        self.gate.output(&qkv[0], &context, input.mode)
    }

    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let [query, key, _value] = self.gate.maps.project(input)?;
        let (_batch, q_len, _d_model) = query.dims3()?;
        let (_batch, kv_len, _key_width) = key.dims3()?;
        let padding = input.mask.padding_only()?;
        let w = self.biases.dense(q_len, kv_len)?;
        aft::reference::weights(&key, &w, padding, self.gate.reach())
    }

    fn factors(&self, input: &AttentionInput<'_>) -> Result<Vec<(&'static str, Tensor)>> {
        let (_batch, q_len, _d_model) = input.x.dims3()?;
        let (_batch, kv_len, _d_model) = input.source(self.gate.maps.reads)?.dims3()?;
        Ok(vec![("w", self.biases.dense(q_len, kv_len)?.unsqueeze(0)?)])
    }
}

/// The linear maps around the mean, and the gate.
#[derive(Debug)]
pub(super) struct Gate {
    pub(super) maps: Maps,
    out: Linear,
    dropout: Dropout,
}

impl Gate {
    /// Builds the maps, with `key_width` channels of keys, and refuses position schemes that act on scores.
    pub(super) fn build(
        kind: &str,
        key_width: usize,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Self> {
        let why = "its queries are not compared with its keys";
        spec.refuse_rotary(kind, why)?;
        spec.refuse_score_bias(kind, why)?;
        spec.refuse_segments(kind, why)?;
        spec.refuse_head_dim(kind, "a value is as wide as the stream")?;
        Ok(Self {
            maps: Maps::build(spec, [spec.d_model, key_width, spec.d_model], vb)?,
            out: projection::output(spec, vb)?,
            dropout: Dropout::new(spec.dropout, vb),
        })
    }

    /// (σ(Q) ⊙ context) W^O of `query (batch, q_len, d_model)` and `context (batch, q_len or 1, d_model)`.
    pub(super) fn output(&self, query: &Tensor, context: &Tensor, mode: Mode) -> Result<Tensor> {
        let gated = gated(Function::Sigmoid, query, context)?;
        self.out.forward(&self.dropout.forward(&gated, mode)?)
    }

    pub(super) fn reach(&self) -> Reach {
        self.maps.reads.reach()
    }
}

/// The cost of the maps and the gate. Their activations are Q, σ(Q), the context, the gated context before and after
/// dropout, the output, K and V.
pub(super) fn cost(spec: &AttentionSpec<'_>, key_width: usize, lens: [usize; 2]) -> AttentionCost {
    let (d_model, key_width) = (spec.d_model as f64, key_width as f64);
    let [q_len, kv_len] = lens.map(|len| len as f64);
    let bias = if spec.bias == Bias::With { 3. * d_model + key_width } else { 0. };
    let channels = spec.d_model.saturating_mul(2).saturating_add(key_width as usize);
    let convolutions = short_convolution::cost(spec, channels, kv_len as usize);
    convolutions
        + AttentionCost {
            parameters: d_model * (3. * d_model + key_width) + bias,
            flops: 2. * d_model * (2. * d_model * q_len + (d_model + key_width) * kv_len)
                + 2. * d_model * q_len,
            activations: d_model * 6. * q_len + (d_model + key_width) * kv_len,
        }
}
