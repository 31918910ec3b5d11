//! From pixels to tokens, and the sequence that they are.
//!
//! Pixels are `(batch, channels, height, width)`, as Optimum and transformers.js have them, and convolutions of ONNX
//! take them so. Here the channels of a pixel stand together, in pictures and in kernels.

use candle_core::{Result, Tensor};
use tealight_ops::patches::Window;

use crate::layers::feed_forward::Activation;
use crate::onnx_graph::{Graph, Scope, Value, signed};
use crate::patches::{Grid, PatchesConfig, PictureSize};

/// What a backbone of pictures reads.
#[derive(Debug)]
pub(super) struct Pictures<'a> {
    pub(super) patches: &'a PatchesConfig,
    pub(super) size: PictureSize,
    pub(super) grid: Grid,
    /// `(batch, channels, height, width)`
    pub(super) pixels: Value,
}

impl Pictures<'_> {
    /// `(batch, n_tokens)` ones, as integers: no position is padding.
    pub(super) fn ones(&self, graph: &Graph) -> Value {
        let shape = self.shape(graph, &[signed(self.grid.n_tokens())]);
        graph.expand(&graph.int(1), &shape)
    }

    /// The tokens before positions, `(batch, n_tokens, d_model)`, from the parameters at `embedding`.
    pub(super) fn tokens(&self, graph: &Graph, at: &Scope<'_>, d_model: usize) -> Result<Value> {
        let own = at.at("patches");
        let x = match self.patches {
            PatchesConfig::Linear(config) => {
                let (window, weight) = (config.window(), own.tensor("weight")?);
                let shape = (d_model, window.size, window.size, self.size.channels);
                convolution(graph, &own, &weight.reshape(shape)?, window, &self.pixels)?
            }
            PatchesConfig::Convolution(config) => {
                let [kernel, pool] = config.windows();
                let mut x = self.pixels.clone();
                for layer in 0..config.layers {
                    let own = own.at(layer);
                    x = convolution(graph, &own, own.tensor("weight")?, kernel, &x)?;
                    x = Activation::Relu.onnx(graph, &graph.max_pool(&x, pool));
                }
                x
            }
        };
        let x = graph.reshape(&x, &[0, 0, -1]); // (batch, d_model, patches)
        let x = graph.transpose(&x, [0, 2, 1]);
        if !at.has("cls") {
            return Ok(x);
        }
        let cls = at.constant(graph, "cls")?;
        let cls = graph.expand(&cls, &self.shape(graph, &[1, signed(d_model)]));
        Ok(graph.concat(&[&cls, &x], 1))
    }

    /// (batch, …)
    fn shape(&self, graph: &Graph, others: &[i64]) -> Value {
        let batch = graph.unsqueeze(&graph.len(&self.pixels, 0), &[0]);
        graph.concat(&[&batch, &graph.ints(others)], 0)
    }
}

/// With `weight (outputs, size, size, inputs)` and the bias at `at`, if there is one.
fn convolution(
    graph: &Graph,
    at: &Scope<'_>,
    weight: &Tensor,
    window: Window,
    x: &Value,
) -> Result<Value> {
    let weight = weight.permute((0, 3, 1, 2))?.contiguous()?;
    let weight = at.derived(graph, "weight.channels_first", &weight)?;
    let bias = at.has("bias").then(|| at.constant(graph, "bias")).transpose()?;
    Ok(graph.convolution(x, &weight, bias.as_ref(), window))
}
