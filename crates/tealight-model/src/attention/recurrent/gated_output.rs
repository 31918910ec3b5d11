//! What follows the rule: a norm of each head, a gate, and the map back into the residual stream.
//!
//! ```text
//! y = W_o (RMSNorm(o) ⊙ φ(g))            φ = SiLU, σ or no gate; one weight vector for all heads, ε = 10⁻⁵
//! ```
//!
//! Dropout acts on what W_o multiplies.

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};
use tealight_ops::activation::Function;
use tealight_ops::gate::gated;
use tealight_ops::norm::rms_norm;

use super::Call;
use crate::attention::AttentionSpec;
use crate::attention::projection::concat_heads;
use crate::choice::names::names;
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;

/// ε of the norm.
pub(crate) const EPSILON: f64 = 1e-5;

names! {
    /// The function of the output's gate.
    pub enum Gate {
        /// x σ(x).
        "silu" => Silu,
        /// σ(x).
        "sigmoid" => Sigmoid,
        /// No gate.
        "none" => None,
    }
}

impl Gate {
    /// The function, if there is a gate.
    pub(in crate::attention) fn function(self) -> Option<Function> {
        match self {
            Self::Silu => Some(Function::Silu),
            Self::Sigmoid => Some(Function::Sigmoid),
            Self::None => None,
        }
    }
}

/// The norm, the gate's function and W_o.
#[derive(Debug)]
pub(in crate::attention) struct GatedOutput {
    /// `(width of a norm)`
    norm: Tensor,
    function: Option<Function>,
    pub(in crate::attention) map: OutputMap,
}

/// W_o, after dropout.
#[derive(Debug)]
pub(in crate::attention) struct OutputMap {
    linear: Linear,
    dropout: Dropout,
}

impl OutputMap {
    /// Builds `output`, from `width` features.
    pub(in crate::attention) fn build(
        width: usize,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let weight = spec.init.residual_weight(width);
        let linear = Linear::build([width, spec.d_model], spec.bias, weight, &vb.pp("output"))?;
        Ok(Self { linear, dropout: Dropout::new(spec.dropout, vb) })
    }

    /// `(batch, len, width)` → `(batch, len, d_model)`
    pub(in crate::attention) fn forward(
        &self,
        call: &Call<'_>,
        context: &Tensor,
    ) -> Result<Tensor> {
        self.linear.forward(&self.dropout.forward(context, call.mode)?)
    }
}

impl GatedOutput {
    /// Builds `norm.weight`, for the `[n_heads, width]` of the rule's outputs, and `output`.
    pub(in crate::attention) fn build(
        [n_heads, width]: [usize; 2],
        function: Option<Function>,
        spec: &AttentionSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> Result<Self> {
        let norm = vb.pp("norm").get_with_hints(width, "weight", init::ONE)?;
        Ok(Self { norm, function, map: OutputMap::build(n_heads * width, spec, vb)? })
    }

    /// The output of the layer: `context (batch, len, n_heads, width)`, `gate (batch, len, n_heads·width)`
    pub(in crate::attention) fn forward(
        &self,
        call: &Call<'_>,
        context: &Tensor,
        gate: Option<&Tensor>,
    ) -> Result<Tensor> {
        let context = concat_heads(&rms_norm(context, &self.norm, EPSILON)?)?;
        let context = match (self.function, gate) {
            (Some(function), Some(gate)) => gated(function, gate, &context)?,
            _ => context,
        };
        self.map.forward(call, &context)
    }
}
