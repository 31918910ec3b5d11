//! Layers that act on each position by itself: norms, activations, feed-forward networks.

use candle_core::Result;

use crate::layers::feed_forward::{Activation, FeedForwardConfig, GluConfig, MlpConfig};
use crate::layers::norm::{LayerNormConfig, NormConfig, RmsNormConfig};
use crate::onnx_graph::{Graph, Scope, Value};

/// `(.., d_model)` → the same shape
pub(super) fn norm(graph: &Graph, config: &NormConfig, at: &Scope<'_>, x: &Value) -> Result<Value> {
    match *config {
        NormConfig::None => Ok(x.clone()),
        NormConfig::LayerNorm(LayerNormConfig { epsilon, bias }) => {
            let weight = at.constant(graph, "weight")?;
            let bias = bias.then(|| at.constant(graph, "bias")).transpose()?;
            Ok(graph.layer_norm(x, &weight, bias.as_ref(), epsilon))
        }
        NormConfig::RmsNorm(RmsNormConfig { epsilon }) => {
            Ok(graph.rms_norm(x, &at.constant(graph, "weight")?, epsilon))
        }
    }
}

/// φ(x)
pub(super) fn activation(graph: &Graph, function: Activation, x: &Value) -> Value {
    let half = |x: &Value, cdf: &Value| {
        let cdf = graph.add(cdf, &graph.number(1.));
        graph.scale(&graph.mul(x, &cdf), 0.5)
    };
    match function {
        Activation::Relu => graph.map("Relu", x),
        Activation::Sigmoid => graph.map("Sigmoid", x),
        Activation::Silu => graph.mul(x, &graph.map("Sigmoid", x)),
        Activation::Gelu => {
            let erf = graph.map("Erf", &graph.scale(x, std::f64::consts::FRAC_1_SQRT_2));
            half(x, &erf)
        }
        Activation::GeluTanh => {
            let cube = graph.mul(&graph.mul(x, x), x);
            let inner = graph.add(x, &graph.scale(&cube, 0.044_715));
            half(x, &graph.map("Tanh", &graph.scale(&inner, (2. / std::f64::consts::PI).sqrt())))
        }
    }
}

/// The feed-forward network, `(.., d_model)` → the same shape; `None` for the kind `none`.
pub(super) fn feed_forward(
    graph: &Graph,
    config: &FeedForwardConfig,
    at: &Scope<'_>,
    x: &Value,
) -> Result<Option<Value>> {
    // The inner width is that of the parameters.
    let inner = match *config {
        FeedForwardConfig::None => return Ok(None),
        FeedForwardConfig::Mlp(MlpConfig { activation: function, d_ff: _ }) => {
            activation(graph, function, &graph.linear(&at.at("up"), x)?)
        }
        FeedForwardConfig::Glu(GluConfig { activation: function, d_ff: _ }) => {
            let gate = activation(graph, function, &graph.linear(&at.at("gate"), x)?);
            graph.mul(&gate, &graph.linear(&at.at("up"), x)?)
        }
    };
    graph.linear(&at.at("down"), &inner).map(Some)
}
