//! A gate over the heads before the output map (Qiu et al. 2025, <https://arxiv.org/abs/2505.06708>).
//!
//! ```text
//! y = (σ(X W_g + b_g) ⊙ Concat(head₁, …, head_h)) W^O           a gate of each channel, or of each head
//! ```
//!
//! The query decides how much of what it has read enters the stream, which makes attention to a first token without
//! meaning needless. b_g is there if the other maps have biases (`model.bias`).

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::activation::{Function, sigmoid};
use tealight_ops::gate::gated;
use tealight_ops::reshape;

use super::{AttentionCost, AttentionSpec};
use crate::choice::names::names;
use crate::layers::linear::{Bias, Linear};

names! {
    /// What the heads are multiplied by before the output map.
    pub enum OutputGate {
        /// Nothing.
        "none" => None,
        /// A gate of each channel.
        "elementwise" => Elementwise,
        /// One gate for all channels of a head.
        "headwise" => Headwise,
    }
}

impl OutputGate {
    /// The map of the stream to the gates, at `gate`.
    pub(super) fn build(
        self,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> Result<Option<Gate>> {
        match self.width(spec) {
            0 => Ok(None),
            width => Ok(Some(Gate { map: spec.linear("gate", width, vb)?, n_heads: spec.n_heads })),
        }
    }

    fn width(self, spec: &AttentionSpec<'_>) -> usize {
        match self {
            Self::None => 0,
            Self::Elementwise => spec.d_heads(),
            Self::Headwise => spec.n_heads,
        }
    }

    /// The cost of the map, the sigmoid and the product.
    pub(super) fn cost(self, spec: &AttentionSpec<'_>, q_len: usize) -> AttentionCost {
        let (d_model, width, q_len) = (spec.d_model as f64, self.width(spec) as f64, q_len as f64);
        if self == Self::None {
            return AttentionCost::default();
        }
        let bias = if spec.bias == Bias::With { width } else { 0. };
        AttentionCost {
            parameters: d_model * width + bias,
            flops: q_len * (2. * d_model * width + spec.d_heads() as f64),
            activations: q_len * (width + spec.d_heads() as f64),
        }
    }
}

/// The gate over the heads.
#[derive(Debug)]
pub(super) struct Gate {
    map: Linear,
    n_heads: usize,
}

impl Gate {
    /// `heads (batch, q_len, n_heads·head_dim)` of the queries at `x (batch, q_len, d_model)` → the same shape
    pub(super) fn forward(&self, x: &Tensor, heads: &Tensor) -> Result<Tensor> {
        let gates = self.map.forward(x)?;
        let (batch, q_len, width) = heads.dims3()?;
        if gates.dims() == heads.dims() {
            return gated(Function::Sigmoid, &gates, heads);
        }
        let by_head = reshape(heads, (batch, q_len, self.n_heads, width / self.n_heads))?;
        let gated = by_head.broadcast_mul(&sigmoid(&gates)?.unsqueeze(3)?)?;
        reshape(&gated, (batch, q_len, width))
    }
}
