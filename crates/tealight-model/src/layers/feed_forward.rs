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

use std::fmt;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::activation::Function;
use tealight_ops::gate::gated;
use tealight_ops::mlp::mlp;

use crate::choice::choice;
use crate::choice::names::names;
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult};
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
    pub enum Activation {
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

impl Activation {
    /// Any shape → the same shape.
    pub fn forward(self, x: &Tensor) -> Result<Tensor> {
        Function::from(self).forward(x)
    }
}

impl From<Activation> for Function {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::Relu => Self::Relu,
            Activation::Gelu => Self::Gelu,
            Activation::GeluTanh => Self::GeluTanh,
            Activation::Silu => Self::Silu,
            Activation::Sigmoid => Self::Sigmoid,
        }
    }
}

/// A built feed-forward network.
pub trait FeedForward: fmt::Debug + Send + Sync {
    /// `(batch, seq_len, d_model)` → `(batch, seq_len, d_model)`
    fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor>;
}

/// Settings of the network that the surrounding block determines.
#[derive(Clone, Debug)]
pub struct FeedForwardSpec<'a> {
    /// Width of the residual stream.
    pub d_model: usize,
    /// Dropout after the activation.
    pub dropout: f64,
    /// Whether the linear maps add a bias.
    pub bias: Bias,
    /// The initial weights.
    pub init: &'a Initializer,
}

impl FeedForwardConfig {
    /// Builds the network; `None` for the kind `none`.
    pub fn build(
        &self,
        spec: &FeedForwardSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Option<Box<dyn FeedForward>>> {
        let Some(d_ff) = self.d_ff(spec.d_model) else { return Ok(None) };
        if d_ff == 0 {
            let key = "model.feed_forward.d_ff";
            return Err(BuildError::config([key], format!("`{key}` = 0 must be positive")));
        }
        let widen = |name| {
            let shape = [spec.d_model, d_ff];
            Linear::build(shape, spec.bias, spec.init.weight(spec.d_model), &vb.pp(name))
        };
        let narrow = || {
            let shape = [d_ff, spec.d_model];
            Linear::build(shape, spec.bias, spec.init.residual_weight(d_ff), &vb.pp("down"))
        };
        let dropout = Dropout::new(spec.dropout, vb);
        Ok(match *self {
            Self::None => None,
            Self::Mlp(MlpConfig { activation, .. }) => {
                Some(Box::new(Mlp { up: widen("up")?, activation, dropout, down: narrow()? }))
            }
            Self::Glu(GluConfig { activation, .. }) => {
                let (gate, up) = (widen("gate")?, widen("up")?);
                Some(Box::new(Glu { gate, up, activation, dropout, down: narrow()? }))
            }
        })
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

#[derive(Debug)]
struct Mlp {
    up: Linear,
    activation: Activation,
    dropout: Dropout,
    down: Linear,
}

impl FeedForward for Mlp {
    fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor> {
        mlp(
            x,
            &tealight_ops::mlp::Mlp {
                up: self.up.map(),
                function: self.activation.into(),
                dropout: self.dropout.draw(mode),
                down: self.down.map(),
            },
        )
    }
}

#[derive(Debug)]
struct Glu {
    gate: Linear,
    up: Linear,
    activation: Activation,
    dropout: Dropout,
    down: Linear,
}

impl FeedForward for Glu {
    fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor> {
        let [gate, up] = Linear::forward_all([&self.gate, &self.up], x)?; // (batch, seq_len, d_ff)
        let inner = gated(self.activation.into(), &gate, &up)?;
        self.down.forward(&self.dropout.forward(&inner, mode)?)
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
