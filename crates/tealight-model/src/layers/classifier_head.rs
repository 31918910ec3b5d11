//! The head of a classifier: a map from the state that is read to logits.
//!
//! ```text
//! linear    logits = W d(x) + b                           Devlin et al. 2019, §4.1
//! dense     logits = W d(Norm(φ(V d′(x) + c))) + b        d, d′: dropout
//!
//!           φ         d′     Norm
//!           tanh      –      –        BERT's code: its pooler, pretrained by next-sentence prediction
//!           tanh      yes    –        RoBERTa's code (Liu et al. 2019)
//!           relu      –      –        DistilBERT's code (Sanh et al. 2019)
//!           gelu      yes    –        Nyströmformer's code (Xiong et al. 2021): the activation of its blocks
//!           gelu      –      yes      ModernBERT (Warner et al. 2024), without c
//! ```
//!
//! BERT: <https://arxiv.org/abs/1810.04805>, RoBERTa: <https://arxiv.org/abs/1907.11692>, DistilBERT:
//! <https://arxiv.org/abs/1910.01108>, Nyströmformer: <https://arxiv.org/abs/2102.03902>, ModernBERT:
//! <https://arxiv.org/abs/2412.13663>.

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::activation::Function;

use super::dropout::Dropout;
use super::feed_forward::Activation;
use super::linear::{Bias, Linear};
use super::norm::{BoxNorm, NormConfig};
use crate::choice::choice;
use crate::choice::names::{Named as _, names};
use crate::choice::settings::settings;
use crate::error::{BuildError, BuildResult};
use crate::mode::Mode;
use crate::params::init::Initializer;

choice! {
    /// `[model.classifier]`: the head of a classifier.
    pub enum ClassifierHead = "linear" {
        /// A linear map (Devlin et al. 2019).
        "linear" => Linear,
        /// A dense map with an activation before the linear map: the heads of BERT, RoBERTa, DistilBERT,
        /// Nyströmformer and ModernBERT.
        "dense" => Dense(DenseHead),
    }
}

settings! {
    /// `[model.classifier] kind = "dense"`
    pub struct DenseHead {
        /// φ.
        pub activation: HeadActivation = HeadActivation::Tanh,
        /// The dense map adds a bias. The linear map after it always does.
        pub bias: bool = true,
        /// Normalise after the activation, as `[model.norm]` says.
        pub norm: bool = false,
        /// Dropout before the dense map, too.
        pub input_dropout: bool = false,
        /// Dropout rate of the head; `model.dropout` when absent.
        #[serde(skip_serializing_if = "Option::is_none")]
        pub dropout: Option<f64> = None,
    }
}

names! {
    /// The activation of a classifier's dense map.
    pub enum HeadActivation {
        /// tanh x.
        "tanh" => Tanh,
        /// max(0, x).
        "relu" => Relu,
        /// x Φ(x).
        "gelu" => Gelu,
        /// GELU with Φ approximated through tanh.
        "gelu_tanh" => GeluTanh,
        /// x σ(x).
        "silu" => Silu,
        /// σ(x).
        "sigmoid" => Sigmoid,
    }
}

impl HeadActivation {
    fn forward(self, x: &Tensor) -> Result<Tensor> {
        match self {
            Self::Tanh => x.tanh(),
            Self::Relu => Function::Relu.forward(x),
            Self::Gelu => Function::Gelu.forward(x),
            Self::GeluTanh => Function::GeluTanh.forward(x),
            Self::Silu => Function::Silu.forward(x),
            Self::Sigmoid => Function::Sigmoid.forward(x),
        }
    }
}

impl HeadActivation {
    /// The same activation of a feed-forward network, if those have it.
    pub(crate) fn of_blocks(self) -> Option<Activation> {
        Activation::ALL.iter().copied().find(|&known| self == known.into())
    }
}

impl From<Activation> for HeadActivation {
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

/// What the model determines of its head.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeadSpec<'a> {
    pub(crate) d_model: usize,
    pub(crate) n_classes: usize,
    /// Of a linear head.
    pub(crate) bias: Bias,
    pub(crate) dropout: f64,
    pub(crate) norm: &'a NormConfig,
    pub(crate) init: &'a Initializer,
}

/// A built head.
#[derive(Debug)]
pub(crate) struct Head {
    dense: Option<Dense>,
    dropout: Dropout,
    output: Linear,
}

/// Norm(φ(V d′(x) + c))
#[derive(Debug)]
struct Dense {
    dropout: Option<Dropout>,
    map: Linear,
    activation: HeadActivation,
    norm: Option<BoxNorm>,
}

impl ClassifierHead {
    /// Builds `weight` and `bias` of the linear map, and `dense` and `norm` before it.
    pub(crate) fn build(&self, spec: &HeadSpec<'_>, vb: &VarBuilder<'_>) -> BuildResult<Head> {
        let HeadSpec { d_model, n_classes, dropout, init, .. } = *spec;
        let (bias, dropout, dense) = match self {
            Self::Linear => (spec.bias, dropout, None),
            Self::Dense(dense) => {
                let rate = dense.rate(dropout)?;
                (Bias::With, rate, Some(dense.build(spec, rate, vb)?))
            }
        };
        let output = Linear::build([d_model, n_classes], bias, init.weight(d_model), vb)?;
        Ok(Head { dense, dropout: Dropout::new(dropout, vb), output })
    }
}

impl DenseHead {
    fn rate(&self, of_model: f64) -> BuildResult<f64> {
        let rate = self.dropout.unwrap_or(of_model);
        if (0. ..1.).contains(&rate) {
            return Ok(rate);
        }
        let key = "model.classifier.dropout";
        let message = format!("`{key}` = {rate} must be at least 0 and less than 1");
        Err(BuildError::config([key], message))
    }

    fn build(&self, spec: &HeadSpec<'_>, rate: f64, vb: &VarBuilder<'_>) -> BuildResult<Dense> {
        let HeadSpec { d_model, norm, init, .. } = *spec;
        let bias = if self.bias { Bias::With } else { Bias::Without };
        let map = Linear::build([d_model; 2], bias, init.weight(d_model), &vb.pp("dense"))?;
        let norm = self.norm.then(|| norm.build(d_model, &vb.pp("norm"))).transpose()?;
        let dropout = self.input_dropout.then(|| Dropout::new(rate, &vb.pp("dense")));
        Ok(Dense { dropout, map, activation: self.activation, norm })
    }
}

impl Head {
    /// `(batch, d_model)` → logits `(batch, n_classes)`
    pub(crate) fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor> {
        let x = self.dense.as_ref().map_or_else(|| Ok(x.clone()), |dense| dense.forward(x, mode));
        self.output.forward(&self.dropout.forward(&x?, mode)?)
    }
}

impl Dense {
    fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor> {
        let Self { dropout, map, activation, norm } = self;
        let x =
            dropout.as_ref().map_or_else(|| Ok(x.clone()), |dropout| dropout.forward(x, mode))?;
        let x = activation.forward(&map.forward(&x)?)?;
        norm.as_ref().map_or_else(|| Ok(x.clone()), |norm| norm.forward(&x))
    }
}
