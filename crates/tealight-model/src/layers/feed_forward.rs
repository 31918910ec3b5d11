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

use std::f64::consts::{FRAC_1_SQRT_2, PI};
use std::fmt;

use candle_core::{Result, Tensor};
use candle_nn::VarBuilder;
use tealight_ops::activation::Function;
use tealight_ops::gate::gated;
use tealight_ops::mlp::{Mlp, mlp};

use crate::choice::names::names;
use crate::choice::settings::settings;
use crate::choice::{NoSettings, choice};
use crate::error::{BuildResult, positive};
use crate::layers::dropout::Dropout;
use crate::layers::linear::{Bias, Linear};
use crate::mode::Mode;
use crate::onnx_graph::{Graph, OnnxError, OnnxResult, Scope, Value};
use crate::params::init::Initializer;

choice! {
    /// `[model.feed_forward]`: the network applied to each position separately.
    pub enum FeedForwardConfig: FeedForwardKind = "mlp" {
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

impl Activation {
    /// φ(x) in a graph of ONNX.
    pub(crate) fn onnx(self, graph: &Graph, x: &Value) -> Value {
        let half = |x: &Value, cdf: &Value| {
            let cdf = graph.add(cdf, &graph.number(1.));
            graph.scale(&graph.mul(x, &cdf), 0.5)
        };
        match self {
            Self::Relu => graph.map("Relu", x),
            Self::Sigmoid => graph.map("Sigmoid", x),
            Self::Silu => graph.mul(x, &graph.map("Sigmoid", x)),
            Self::Gelu => half(x, &graph.map("Erf", &graph.scale(x, FRAC_1_SQRT_2))),
            Self::GeluTanh => {
                let cube = graph.mul(&graph.mul(x, x), x);
                let inner = graph.add(x, &graph.scale(&cube, 0.044_715));
                half(x, &graph.map("Tanh", &graph.scale(&inner, (2. / PI).sqrt())))
            }
        }
    }
}

/// The settings of one kind of feed-forward network.
pub trait FeedForwardKind: fmt::Debug {
    /// Builds the network, or refuses settings by their keys. `None`: the block has no feed-forward network.
    fn build(
        &self,
        spec: &FeedForwardSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Option<BoxFeedForward>>;

    /// What the network needs; called before it is built.
    fn cost(&self, d_model: usize) -> FeedForwardCost;

    /// The inner width, if there is one.
    fn d_ff(&self, _d_model: usize) -> Option<usize> {
        None
    }

    /// Adds the network on `x (.., d_model)` to a graph of ONNX, with the parameters at `at`. `None`: the kind has no
    /// such graph, and the export refuses it by its name.
    fn onnx(&self, _graph: &Graph, _at: &Scope<'_>, _x: &Value) -> OnnxResult<Option<Value>> {
        Ok(None)
    }
}

/// What a network needs, in floating point, so that no size overflows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FeedForwardCost {
    /// Scalars in its matrices.
    pub parameters: f64,
    /// Numbers kept at one position for the backward pass.
    pub activations: f64,
}

/// A built network of any kind.
pub type BoxFeedForward = Box<dyn FeedForward>;

/// A built feed-forward network.
pub trait FeedForward: fmt::Debug + Send + Sync {
    /// `(.., d_model)` → the same shape
    fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor>;
}

/// Settings of the network that the surrounding block determines.
#[derive(Clone, Copy, Debug)]
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
    /// As [`FeedForwardKind::onnx`].
    pub(crate) fn onnx(&self, graph: &Graph, at: &Scope<'_>, x: &Value) -> OnnxResult<Value> {
        let y = self.settings().onnx(graph, at, x)?;
        y.ok_or_else(|| OnnxError::unsupported_kind("model.feed_forward.kind", self.kind()))
    }

    /// The inner width, if there is one.
    pub fn d_ff(&self, d_model: usize) -> Option<usize> {
        self.settings().d_ff(d_model)
    }
}

/// The kinds with one inner layer: MLP, and GLU, which has a gate.
trait Inner: fmt::Debug {
    const IS_GATED: bool;

    fn activation(&self) -> Activation;

    fn width(&self, d_model: usize) -> usize;
}

impl Inner for MlpConfig {
    const IS_GATED: bool = false;

    fn activation(&self) -> Activation {
        self.activation
    }

    fn width(&self, d_model: usize) -> usize {
        self.d_ff.unwrap_or(d_model.saturating_mul(4))
    }
}

impl Inner for GluConfig {
    const IS_GATED: bool = true;

    fn activation(&self) -> Activation {
        self.activation
    }

    fn width(&self, d_model: usize) -> usize {
        self.d_ff.unwrap_or(d_model.saturating_mul(8).div_ceil(3).next_multiple_of(8))
    }
}

impl<K: Inner> FeedForwardKind for K {
    fn build(
        &self,
        spec: &FeedForwardSpec<'_>,
        vb: &VarBuilder<'_>,
    ) -> BuildResult<Option<BoxFeedForward>> {
        let FeedForwardSpec { d_model, bias, init, .. } = *spec;
        let d_ff = self.width(d_model);
        positive("model.feed_forward.d_ff", d_ff as f64)?;
        let widen = |name| Linear::build([d_model, d_ff], bias, init.weight(d_model), &vb.pp(name));
        let (shape, weight) = ([d_ff, d_model], init.residual_weight(d_ff));
        Ok(Some(Box::new(Network {
            gate: K::IS_GATED.then(|| widen("gate")).transpose()?,
            up: widen("up")?,
            function: self.activation().into(),
            dropout: Dropout::new(spec.dropout, vb),
            down: Linear::build(shape, bias, weight, &vb.pp("down"))?,
        })))
    }

    fn cost(&self, d_model: usize) -> FeedForwardCost {
        let (d_model, d_ff) = (d_model as f64, self.width(d_model) as f64);
        // Maps: up, down. Inner activations: the input of φ. Under a gate, maps: gate, up, down; inner activations:
        // the gate, the gated values, their product.
        let (n_maps, n_inner) = if K::IS_GATED { (3., 3.) } else { (2., 1.) };
        FeedForwardCost { parameters: n_maps * d_model * d_ff, activations: n_inner * d_ff }
    }

    fn d_ff(&self, d_model: usize) -> Option<usize> {
        Some(self.width(d_model))
    }

    fn onnx(&self, graph: &Graph, at: &Scope<'_>, x: &Value) -> OnnxResult<Option<Value>> {
        let map = |name, x| graph.linear(&at.at(name), x);
        let activated = if K::IS_GATED { "gate" } else { "up" };
        let mut inner = self.activation().onnx(graph, &map(activated, x)?);
        if K::IS_GATED {
            inner = graph.mul(&inner, &map("up", x)?);
        }
        Ok(Some(map("down", &inner)?))
    }
}

/// A built MLP or GLU.
#[derive(Debug)]
struct Network {
    /// W of GLU; an MLP has none.
    gate: Option<Linear>,
    up: Linear,
    function: Function,
    dropout: Dropout,
    down: Linear,
}

impl FeedForward for Network {
    fn forward(&self, x: &Tensor, mode: Mode) -> Result<Tensor> {
        let Self { gate, up, function, dropout, down } = self;
        let function = *function;
        let Some(gate) = gate else {
            if let Some(h) = up.forward_int8(x, Some(function))? {
                return down.forward(&dropout.forward(&h, mode)?);
            }
            let dropout = dropout.draw(mode);
            return mlp(x, &Mlp { up: up.map(), function, dropout, down: down.map() });
        };
        let [gate, up] = Linear::forward_all([gate, up], x)?; // (.., d_ff)
        down.forward(&dropout.forward(&gated(function, &gate, &up)?, mode)?)
    }
}

/// The kind `none`.
impl FeedForwardKind for NoSettings {
    fn build(
        &self,
        _spec: &FeedForwardSpec<'_>,
        _vb: &VarBuilder<'_>,
    ) -> BuildResult<Option<BoxFeedForward>> {
        Ok(None)
    }

    fn cost(&self, _d_model: usize) -> FeedForwardCost {
        FeedForwardCost::default()
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
