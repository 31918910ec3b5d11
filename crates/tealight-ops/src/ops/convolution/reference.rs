//! The definition, in plain tensor operations.

use candle_core::{Result, Tensor};

use super::Steps;
use crate::ops::linear;
use crate::ops::patches::reference::patches;
use crate::ops::window::Window;

/// `x (batch, height, width, inputs)`, `weight (outputs, size, size, inputs)`, `bias (outputs)` →
/// `(batch, rows, columns, outputs)`
pub fn convolution(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    Steps { stride, padding }: Steps,
) -> Result<Tensor> {
    let (n_outputs, size, _, n_inputs) = weight.dims4()?;
    let patches = patches(x, Window { size, stride, padding })?; // (batch, rows, columns, size²·inputs)
    let matrix = weight.reshape((n_outputs, size * size * n_inputs))?;
    linear::reference::linear(&patches, &matrix, bias)
}
