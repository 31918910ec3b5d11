//! Short convolutions behind maps.

use super::Layer;
use super::recurrence::previous_tokens;
use crate::attention::short_convolution::NAME;
use crate::onnx_graph::{OnnxError, OnnxResult, Value};

/// SiLU(conv(x)) in a graph, of the outputs `x (batch, len, width)` of the map `name`; x itself if it has no convolution.
///
/// # Errors
/// If the layer has a cache of keys and values.
pub(crate) fn activated(layer: &Layer<'_>, name: &str, x: Value) -> OnnxResult<Value> {
    let (graph, at) = (layer.graph(), layer.at.at(name).at(NAME));
    if !at.has("weight") {
        return Ok(x);
    }
    if layer.past.is_some() {
        let reason = "the inputs `past_key_values` hold keys and values, and not what the convolution still reads; \
                      export it without a cache";
        return Err(OnnxError::unsupported("a cache of `model.attention.conv_size`", reason));
    }
    let weight = at.tensor("weight")?; // (width, size)
    let (_width, size) = weight.dims2()?;
    let (mut sum, mut shifted) = (None, x);
    for i in (0..size).rev() {
        let tap = at.derived(graph, &format!("tap_{i}"), &weight.narrow(1, i, 1)?.squeeze(1)?)?;
        let term = graph.mul(&shifted, &tap);
        sum = Some(sum.map_or(term.clone(), |sum| graph.add(&sum, &term)));
        if i > 0 {
            shifted = previous_tokens(layer, &shifted);
        }
    }
    let sum = sum.expect("invariant: a filter has a tap");
    Ok(graph.mul(&sum, &graph.map("Sigmoid", &sum)))
}
