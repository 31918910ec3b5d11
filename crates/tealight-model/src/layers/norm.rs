//! Normalisation of the vector at each position.
//!
//! ```text
//! LayerNorm(x) = (x − mean x) / √(var x + ε) · w + b        Ba et al. 2016, eq. (3)
//! RMSNorm(x)   = x / √(mean x² + ε) · w                     Zhang & Sennrich 2019, eq. (4)
//! ```
//!
//! LayerNorm: <https://arxiv.org/abs/1607.06450>. RMSNorm: <https://arxiv.org/abs/1910.07467>.
//!
//! Both use `tealight_ops::norm`, because Candle's own layers have no backward on contiguous input.

use std::fmt;

use candle_core::{Result, Tensor};
use candle_nn::{VarBuilder, init};
use tealight_ops::norm::{layer_norm, rms_norm};

use crate::choice::settings::settings;
use crate::choice::{NoSettings, choice};
use crate::error::{BuildError, BuildResult};
use crate::onnx_graph::{Graph, OnnxError, OnnxResult, Scope, Value};

choice! {
    /// `[model.norm]`: the normalisation of the residual stream.
    pub enum NormConfig: NormKind = "layer_norm" {
        /// Zero mean, unit variance, then scale and shift (Ba et al. 2016).
        "layer_norm" => LayerNorm(LayerNormConfig),
        /// Unit root mean square, then scale (Zhang & Sennrich 2019).
        "rms_norm" => RmsNorm(RmsNormConfig),
        /// No normalisation.
        "none" => None,
    }
}

settings! {
    /// `[model.norm] kind = "layer_norm"`
    pub struct LayerNormConfig {
        /// ε under the root.
        pub epsilon: f64 = 1e-5,
        /// Add a learnt shift.
        pub bias: bool = true,
    }

    /// `[model.norm] kind = "rms_norm"`
    pub struct RmsNormConfig {
        /// ε under the root.
        pub epsilon: f64 = 1e-6,
    }
}

/// The settings of one kind of norm.
pub trait NormKind: fmt::Debug {
    /// Builds the normalisation of vectors of width `d_model`, or refuses settings by their keys.
    fn build(&self, d_model: usize, vb: &VarBuilder<'_>) -> BuildResult<BoxNorm>;

    /// Adds the norm of `x (.., d_model)` to a graph of ONNX, with the parameters at `at`. `None`: the kind has no
    /// such graph, and the export refuses it by its name.
    fn onnx(&self, _graph: &Graph, _at: &Scope<'_>, _x: &Value) -> OnnxResult<Option<Value>> {
        Ok(None)
    }
}

/// A built norm of any kind.
pub type BoxNorm = Box<dyn Norm>;

/// A built norm.
pub trait Norm: fmt::Debug + Send + Sync {
    /// `(.., d_model)` → `(.., d_model)`
    fn forward(&self, x: &Tensor) -> Result<Tensor>;
}

impl NormConfig {
    /// Builds the normalisation of vectors of width `d_model`.
    pub(crate) fn build(&self, d_model: usize, vb: &VarBuilder<'_>) -> BuildResult<BoxNorm> {
        self.settings().build(d_model, vb)
    }

    /// As [`NormKind::onnx`].
    pub(crate) fn onnx(&self, graph: &Graph, at: &Scope<'_>, x: &Value) -> OnnxResult<Value> {
        let y = self.settings().onnx(graph, at, x)?;
        y.ok_or_else(|| OnnxError::unsupported_kind("model.norm.kind", self.kind()))
    }
}

impl NormKind for LayerNormConfig {
    fn build(&self, d_model: usize, vb: &VarBuilder<'_>) -> BuildResult<BoxNorm> {
        let Self { epsilon, bias } = *self;
        check_epsilon("model.norm.epsilon", epsilon)?;
        let bias = bias.then(|| vb.get_with_hints(d_model, "bias", init::ZERO)).transpose()?;
        let weight = vb.get_with_hints(d_model, "weight", init::ONE)?;
        Ok(Box::new(LayerNorm { weight, bias, epsilon }))
    }

    fn onnx(&self, graph: &Graph, at: &Scope<'_>, x: &Value) -> OnnxResult<Option<Value>> {
        let weight = at.constant(graph, "weight")?;
        let bias = self.bias.then(|| at.constant(graph, "bias")).transpose()?;
        Ok(Some(graph.layer_norm(x, &weight, bias.as_ref(), self.epsilon)))
    }
}

#[derive(Debug)]
struct LayerNorm {
    weight: Tensor,
    bias: Option<Tensor>,
    epsilon: f64,
}

impl Norm for LayerNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        layer_norm(x, &self.weight, self.bias.as_ref(), self.epsilon)
    }
}

impl NormKind for RmsNormConfig {
    fn build(&self, d_model: usize, vb: &VarBuilder<'_>) -> BuildResult<BoxNorm> {
        check_epsilon("model.norm.epsilon", self.epsilon)?;
        let weight = vb.get_with_hints(d_model, "weight", init::ONE)?;
        Ok(Box::new(RmsNorm { weight, epsilon: self.epsilon }))
    }

    fn onnx(&self, graph: &Graph, at: &Scope<'_>, x: &Value) -> OnnxResult<Option<Value>> {
        Ok(Some(graph.rms_norm(x, &at.constant(graph, "weight")?, self.epsilon)))
    }
}

#[derive(Debug)]
struct RmsNorm {
    weight: Tensor,
    epsilon: f64,
}

impl Norm for RmsNorm {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        rms_norm(x, &self.weight, self.epsilon)
    }
}

/// The kind `none`: y = x.
impl NormKind for NoSettings {
    fn build(&self, _d_model: usize, _vb: &VarBuilder<'_>) -> BuildResult<BoxNorm> {
        Ok(Box::new(Self {}))
    }

    fn onnx(&self, _graph: &Graph, _at: &Scope<'_>, x: &Value) -> OnnxResult<Option<Value>> {
        Ok(Some(x.clone()))
    }
}

impl Norm for NoSettings {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        Ok(x.clone())
    }
}

/// Refuses an ε, the setting `key`, that is not positive.
pub(crate) fn check_epsilon(key: &str, epsilon: f64) -> BuildResult<()> {
    // A smaller ε rounds to zero in f32, and the norm of a constant row is then 0 / 0.
    let least = f64::from(f32::MIN_POSITIVE);
    if epsilon.is_finite() && epsilon >= least {
        return Ok(());
    }
    let message = format!(
        "`{key}` = {epsilon} must be positive: finite, and at least {least:e}, the smallest number of f32"
    );
    Err(BuildError::config([key], message))
}
