//! gMLP's spatial gating (Liu et al. 2021, <https://arxiv.org/abs/2105.08050>): a matrix over positions, and a gate.
//!
//! ```text
//! [u; v] = GELU(X U),   s = u ⊙ (W · LayerNorm(v) + b),   y = s V                 W (T, T), b (T)
//! ```
//!
//! W begins near zero and b at one, so that the layer begins as a feed-forward network. W belongs to absolute positions; a
//! shorter sequence uses its first rows and columns. A causal layer uses its lower triangle. Padding is left out of W's
//! sums. The paper's block has no other feed-forward network: `model.feed_forward.kind = "none"`. Its widths are 6·d_model
//! for u and v together.
//!
//! Cost: O(T²·width + T·d_model·width) time, O(T²) memory for the causal part of W, T² parameters.

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};
use tealight_ops::activation::gelu;
use tealight_ops::norm::layer_norm;

use super::aft_full::NEAR_ZERO;
use super::fnet::without_padding;
use super::{
    Attention, AttentionCost, AttentionInput, AttentionKind, AttentionSpec, BoxAttention, Reads,
    RowSum,
};
use crate::choice::settings::settings;
use crate::error::BuildResult;
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};

const EPSILON: f64 = 1e-5;

settings! {
    /// `[model.attention] kind = "gmlp"`
    pub struct Config {
        /// Channels of u, and of v; 3·d_model when absent.
        pub width: Option<usize> = None,
    }
}

impl Config {
    fn width(&self, spec: &AttentionSpec<'_>) -> usize {
        self.width.unwrap_or(spec.d_model.saturating_mul(3))
    }
}

impl AttentionKind for Config {
    fn build(&self, spec: &AttentionSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<BoxAttention> {
        let why = "its matrix is over the positions of one sequence";
        spec.refuse_memory("gmlp", why)?;
        spec.refuse_rotary("gmlp", "it has no queries and keys")?;
        spec.refuse_score_bias("gmlp", "it forms no scores")?;
        spec.refuse_segments("gmlp", why)?;
        spec.refuse_head_dim("gmlp", "it has no heads")?;
        let width = self.width(spec);
        spec.positive("width", width)?;
        let (norm, spatial) = (vb.pp("norm"), vb.pp("spatial"));
        let len = spec.max_q_len;
        Ok(Box::new(SpatialGating {
            reads: spec.reads,
            input: spec.linear("input", 2 * width, vb)?,
            gain: norm.get_with_hints(width, "weight", init::ONE)?,
            shift: norm.get_with_hints(width, "bias", init::ZERO)?,
            spatial: spatial.get_with_hints((len, len), "weight", NEAR_ZERO)?,
            bias: spatial.get_with_hints(len, "bias", init::ONE)?,
            dropout: Dropout::new(spec.dropout, vb),
            output: Linear::build(
                [width, spec.d_model],
                spec.bias,
                spec.init.residual_weight(width),
                &vb.pp("output"),
            )?,
        }))
    }

    fn cost(&self, spec: &AttentionSpec<'_>, q_len: usize, _kv_len: usize) -> AttentionCost {
        let [d_model, width, q_len, max_len] =
            [spec.d_model, self.width(spec), q_len, spec.max_q_len].map(|n| n as f64);
        let biases = if spec.bias == Bias::With { 2. * width + d_model } else { 0. };
        AttentionCost {
            parameters: 3. * d_model * width + biases + 2. * width + max_len * (max_len + 1.),
            flops: q_len * width * (6. * d_model + 2. * q_len + 20.),
            activations: q_len * (9. * width + d_model) + q_len * q_len,
        }
    }
}

#[derive(Debug)]
struct SpatialGating {
    reads: Reads,
    input: Linear,
    gain: Tensor,
    shift: Tensor,
    /// W, `(max_len, max_len)`
    spatial: Tensor,
    /// b, `(max_len)`
    bias: Tensor,
    dropout: Dropout,
    output: Linear,
}

impl SpatialGating {
    /// W of the first `len` positions, its lower triangle if causal: `(len, len)`
    fn matrix(&self, len: usize) -> Result<Tensor> {
        let w = self.spatial.narrow(0, 0, len)?.narrow(1, 0, len)?;
        if self.reads != Reads::Past {
            return w.contiguous();
        }
        let past = (0..len).flat_map(|i| (0..len).map(move |j| u8::from(j <= i)));
        let past = Tensor::from_vec(past.collect(), (len, len), w.device())?;
        past.where_cond(&w.contiguous()?, &w.zeros_like()?)
    }
}

/// u ⊙ (W v + b): `u` and `v (batch, len, width)`, `w (len, len)`, `bias (len)`.
pub fn spatial_gating(u: &Tensor, v: &Tensor, w: &Tensor, bias: &Tensor) -> Result<Tensor> {
    let (batch, len, width) = v.dims3()?;
    // One product for the whole batch: (len, batch·width)
    let v = v.transpose(0, 1)?.reshape((len, batch * width))?;
    let mixed = w.matmul(&v)?.broadcast_add(&bias.unsqueeze(1)?)?;
    u * mixed.reshape((len, batch, width))?.transpose(0, 1)?
}

impl Attention for SpatialGating {
    fn forward(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let x = input.source(self.reads)?;
        let halves = gelu(&self.input.forward(x)?)?;
        let (_batch, len, width) = halves.dims3()?;
        let (u, v) = (halves.narrow(2, 0, width / 2)?, halves.narrow(2, width / 2, width / 2)?);
        let v = layer_norm(&v.contiguous()?, &self.gain, Some(&self.shift), EPSILON)?;
        let v = without_padding(&v, input.mask.padding_only()?)?;
        let gated = spatial_gating(&u, &v, &self.matrix(len)?, &self.bias.narrow(0, 0, len)?)?;
        self.output.forward(&self.dropout.forward(&gated, input.mode)?)
    }

    /// W, for every channel the same.
    fn weights(&self, input: &AttentionInput<'_>) -> Result<Tensor> {
        let (batch, len, _d_model) = input.source(self.reads)?.dims3()?;
        let w = self.matrix(len)?.broadcast_as((batch, 1, len, len))?.contiguous()?;
        let Some(padding) = input.mask.padding_only()? else { return Ok(w) };
        let padding = padding.reshape((batch, 1, 1, len))?.broadcast_as(w.shape())?;
        padding.where_cond(&w.zeros_like()?, &w)
    }

    fn row_sum(&self) -> RowSum {
        RowSum::Any
    }
}
