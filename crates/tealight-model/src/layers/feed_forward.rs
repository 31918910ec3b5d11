//! The position-wise feed-forward network.
//!
//! ```text
//! FFN(x) = φ(x W₁ + b₁) W₂ + b₂                       Vaswani et al. 2017, eq. (2)
//! GLU(x) = (φ(x W + b) ⊗ (x V + c)) W₂                Shazeer 2020, eqs. (5) and (6)
//! ```
//!
//! GLU: <https://arxiv.org/abs/2002.05202>.
//!
//! Cost: O(seq_len·d_model·d_ff) time, O(seq_len·d_ff) memory.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::activation::Function;
use tealight_ops::gate::gated;
use tealight_ops::mlp::{Mlp, mlp};

use crate::choice::choice;
use crate::choice::names::names;
use crate::choice::settings::settings;
use crate::error::{BuildResult, positive};
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};
use crate::mode::Mode;
use crate::params::init::Initializer;

choice! {
    /// `[model.feed_forward]`: the network applied to each position separately.
    pub enum FeedForwardConfig = "mlp" {
        /// Two linear maps with an activation between them (Vaswani et al. 2017).
        "mlp" => Mlp(MlpConfig),
        /// One map gates another: GLU, ReGLU, GEGLU, SwiGLU by activation (Shazeer 2020).
        "glu" => Glu(GluConfig),
        /// No feed-forward network.
        "none" => None,
    }
}

settings! {
    /// `[model.feed_forward] kind = "mlp"`
    pub struct MlpConfig {
        /// φ.
        pub activation: Activation = Activation::Gelu,
        /// Inner width; 4·d_model when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub d_ff: Option<usize> = None,
    }

    /// `[model.feed_forward] kind = "glu"`
    pub struct GluConfig {
        /// φ, on the gate: `sigmoid` is GLU, `relu` ReGLU, `gelu` GEGLU, `silu` SwiGLU.
        pub activation: Activation = Activation::Silu,
        /// Inner width; when absent, ⅔·4·d_model rounded up to a multiple of 8, which gives the parameter
        /// count of an MLP (Shazeer 2020, §3).
        #[serde(skip_serializing_if = "Option::is_none")]
        pub d_ff: Option<usize> = None,
    }
}

names! {
    /// A function applied to each number.
    pub enum Activation as Function {
        /// max(0, x).
        "relu" => Relu,
        /// x Φ(x), with the exact normal distribution function (Hendrycks & Gimpel 2016).
        "gelu" => Gelu,
        /// GELU with Φ approximated through tanh, as in GPT-2.
        "gelu_tanh" => GeluTanh,
        /// x σ(x), also called swish (Elfwing et al. 2018; Ramachandran et al. 2017).
        "silu" => Silu,
        /// σ(x), the gate of the original GLU (Dauphin et al. 2017).
        "sigmoid" => Sigmoid,
    }
}

/// A built feed-forward network.
#[derive(Debug)]
pub(crate) struct FeedForward {
    /// W of GLU; an MLP has none.
    gate: Option<Linear>,
    up: Linear,
    activation: Activation,
    dropout: Dropout,
    down: Linear,
}

impl FeedForward {
    /// `(.., d_model)` → the same shape
    pub(crate) fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor> {
        let Self { gate, up, activation, dropout, down } = self;
        let function = Function::from(*activation);
        let Some(gate) = gate else {
            let dropout = dropout.draw(mode);
            return mlp(x, &Mlp { up: up.map(), function, dropout, down: down.map() });
        };
        let [gate, up] = Linear::forward_all([gate, up], x)?; // (.., d_ff)
        down.forward(&dropout.forward(&gated(function, &gate, &up)?, mode)?)
    }
}

/// Settings of the network that the surrounding block determines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FeedForwardSpec<'a> {
    /// Width of the residual stream.
    pub(crate) d_model: usize,
    /// Dropout after the activation.
    pub(crate) dropout: f64,
    /// Whether the linear maps add a bias.
    pub(crate) bias: Bias,
    /// The initial weights.
    pub(crate) init: &'a Initializer,
}

impl FeedForwardConfig {
    /// Builds the network; `None` for the kind `none`.
    pub(crate) fn build(
        &self,
        spec: &FeedForwardSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Option<FeedForward>> {
        let FeedForwardSpec { d_model, bias, init, .. } = *spec;
        let Some(d_ff) = self.d_ff(d_model) else { return Ok(None) };
        positive("model.feed_forward.d_ff", d_ff as f64)?;
        let widen = |name| Linear::build([d_model, d_ff], bias, init.weight(d_model), &vb.pp(name));
        let (activation, gate) = match *self {
            Self::None => return Ok(None),
            Self::Mlp(MlpConfig { activation, .. }) => (activation, None),
            Self::Glu(GluConfig { activation, .. }) => (activation, Some(widen("gate")?)),
        };
        let (shape, weight) = ([d_ff, d_model], init.residual_weight(d_ff));
        Ok(Some(FeedForward {
            gate,
            up: widen("up")?,
            activation,
            dropout: Dropout::new(spec.dropout, vb),
            down: Linear::build(shape, bias, weight, &vb.pp("down"))?,
        }))
    }

    /// The inner width; `None` for the kind `none`.
    pub fn d_ff(&self, d_model: usize) -> Option<usize> {
        match *self {
            Self::Mlp(MlpConfig { d_ff, .. }) => Some(d_ff.unwrap_or(d_model.saturating_mul(4))),
            Self::Glu(GluConfig { d_ff, .. }) => {
                Some(d_ff.unwrap_or(d_model.saturating_mul(8).div_ceil(3).next_multiple_of(8)))
            }
            Self::None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inner_width_keeps_the_parameter_count() {
        assert_eq!(FeedForwardConfig::default().d_ff(32), Some(128));
        assert_eq!(FeedForwardConfig::Glu(GluConfig::default()).d_ff(33), Some(88));
        assert_eq!(FeedForwardConfig::None.d_ff(32), None);
    }
}
