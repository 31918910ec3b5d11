//! Convolution of pictures with square kernels; the channels of a pixel stand together.
//!
//! ```text
//! y_(r,c) = W p_(r,c) + b,   p: the patches under the kernel         see `patches`
//!
//! dW = Σ g p ᵀ,   db = Σ g,   dp = Wᵀ g,   dx: the sum of dp over the patches that read a pixel
//! ```
//!
//! As in deep-learning libraries the kernel is not flipped.
//!
//! Cost: 2·size²·inputs·outputs operations per window forward, twice that backward. The patches are made and used block
//! by block in the cache, forward and again backward: they would take size² times the memory of x.

mod cpu;
pub mod reference;

use candle_core::{Result, Tensor, bail};

use crate::autograd::graph::{Saved, record_saving};
use crate::backend::buffer::{self, contiguous, stored};
use crate::backend::choice::dispatch;
use crate::backend::profile::{Phase, timed};
use crate::backend::simd::vector::Lanes;
use crate::ops::linear::{Map, linear, split};
use crate::ops::patches::cpu::Slide;
pub use crate::ops::window::Window;
use cpu::Convolution;

const NAME: &str = "convolution";

/// How a kernel moves over a picture: its size is that of the weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steps {
    /// Pixels from one window to the next.
    pub stride: usize,
    /// Zeros around the picture, on each side.
    pub padding: usize,
}

/// `x (batch, height, width, inputs)`, `weight (outputs, size, size, inputs)`, `bias (outputs)` →
/// `(batch, rows, columns, outputs)`
///
/// # Errors
/// If the shapes do not match, or the kernel does not fit.
pub fn convolution(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    steps: Steps,
) -> Result<Tensor> {
    let (window, matrix) = checked(x, weight, bias, steps)?;
    let map = Map { weight: &matrix, bias };
    let operands: Vec<&Tensor> = [x, &matrix].into_iter().chain(bias).collect();
    dispatch!(match operands {
        Cpu(T) => on_cpu::<T>(x, map, window),
        Cuda => linear(&crate::ops::patches::patches(x, window)?, &matrix, bias),
        Reference => reference::convolution(x, weight, bias, steps),
    })
}

/// The window, and the weight as a matrix `(outputs, size·size·inputs)`.
fn checked(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    Steps { stride, padding }: Steps,
) -> Result<(Window, Tensor)> {
    let (_batch, _height, _width, n_inputs) = x.dims4()?;
    let (n_outputs, size, width, channels) = weight.dims4()?;
    let fits = bias.is_none_or(|bias| bias.dims() == [n_outputs]);
    if !fits || (width, channels) != (size, n_inputs) {
        let bias = bias.map(Tensor::shape);
        bail!(
            "convolution of x {:?}, weight {:?}, bias {bias:?}: expected \
             (batch, height, width, inputs), (outputs, size, size, inputs), (outputs)",
            x.shape(),
            weight.shape()
        )
    }
    let matrix = crate::autograd::graph::reshape(weight, (n_outputs, size * size * n_inputs))?;
    Ok((Window { size, stride, padding }, matrix))
}

fn on_cpu<T: Lanes>(x: &Tensor, map: Map<'_>, window: Window) -> Result<Tensor> {
    let (n_outputs, _) = map.weight.dims2()?;
    let convolution = Convolution { slide: Slide::from_pictures(x, window)?, n_outputs };
    let operands: Vec<&Tensor> = [x, map.weight].into_iter().chain(map.bias).collect();
    let inputs = contiguous(&operands)?;
    let has_bias = [map.bias.is_some()];
    let y = timed(NAME, Phase::Forward, || {
        let (x, maps) = split(&inputs, &has_bias);
        convolution.forward::<T>(x, maps[0])
    })?;
    let value = stored(y, convolution.shape());
    record_saving(NAME, &inputs, value, Saved::Inputs, move |inputs, _, gradient| {
        let (x, maps) = split(inputs, &has_bias);
        let is_needed: Vec<bool> = inputs.iter().map(Tensor::track_op).collect();
        let gradients = convolution.backward::<T>(x, maps[0], gradient, &is_needed)?;
        buffer::gradients(gradients, inputs)
    })
}
