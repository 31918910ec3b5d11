//! Linear maps whose operands are rounded to integers of 8 bits, for models that are not trained.
//!
//! ```text
//! weight, per output j       s_j = max |W_j| / 127             w_jk = round(W_jk / s_j)              −127 to 127
//! input, per row i           r_i = max(x_i, 0) / 255 − min(x_i, 0) / 255
//!                            z_i = round(−min(x_i, 0) · 1/r_i) q_ik = round(x_ik · 1/r_i) + z_i      0 to 255
//!
//! y_ij = r_i s_j (Σ_k q_ik w_jk − z_i Σ_k w_jk) + b_j
//! ```
//!
//! Halves are rounded to even. A row of x whose scale is below 10⁻³⁰, or an output of the weight whose largest element is,
//! counts as zeros and has the scale 1. Weights are rounded once. Rows of x are rounded as they come, as the operator
//! `DynamicQuantizeLinear` of ONNX rounds a tensor, but each row alone, so that it does not depend on the others of its
//! batch (Jacob et al. 2018, <https://arxiv.org/abs/1712.05877>, eqs. (1) to (4), with a zero point for x only).
//!
//! The sums are exact in 32 bits. The maps are therefore equal on all instruction sets and for any number of threads; an
//! activation behind them may differ in the last digits between instruction sets. A number that is not finite makes its row,
//! or its output, NaN.
//!
//! Cost: 2·rows·in·out operations on bytes, and a pass over x. A weight takes a quarter of its memory in f32.
//!
//! There is no gradient: x must not be part of a graph.

mod bytes;
mod kernels;
mod product;
pub mod reference;
mod rows;
#[cfg(test)]
mod tests;
mod weight;

use candle_core::{D, DType, Result, Tensor, bail};

use crate::backend::buffer::{View, tensor, unwritten};
use crate::backend::matrix::MatrixMut;
use crate::backend::profile::{Phase, timed};
use crate::backend::simd::int8::Int8;
use crate::ops::activation::Function;
use crate::ops::linear::with_last;
use product::Product;
use rows::Rows;
pub use weight::{Weight, rounded};

/// The map f(x Wᵀ + b).
#[derive(Clone, Copy, Debug)]
pub struct Map<'a> {
    /// W.
    pub weight: &'a Weight,
    /// b `(out)`, in f32 on the CPU.
    pub bias: Option<&'a Tensor>,
    /// f; the identity if it is `None`.
    pub function: Option<Function>,
}

/// Each of `maps` of `x (.., in)`, in f32 on the CPU: `(.., out)`. The rows of `x` are rounded once for all maps.
///
/// # Errors
/// If the widths do not match, if `x` or a bias is not f32 on the CPU, or if `x` is part of a graph.
pub fn int8_linears(x: &Tensor, maps: &[Map<'_>]) -> Result<Vec<Tensor>> {
    let width = x.dim(D::Minus1)?;
    for Map { weight, bias, .. } in maps {
        let n_outputs = weight.n_outputs();
        if width != weight.n_inputs() || bias.is_some_and(|bias| bias.dims() != [n_outputs]) {
            let bias = bias.map(Tensor::shape);
            bail!(
                "int8 linear of x {:?}, weight {:?}, bias {bias:?}: expected (.., in), (out, in), (out)",
                x.shape(),
                (n_outputs, weight.n_inputs()),
            )
        }
    }
    if x.dtype() != DType::F32 || !x.device().is_cpu() {
        bail!("int8 linear of {:?} on {:?}: expected f32 on the CPU", x.dtype(), x.device())
    }
    if x.track_op() {
        bail!("int8 linear has no gradient, but x is part of a graph")
    }
    timed("int8_linear", Phase::Forward, || compute(Int8::current(), x, maps))
}

/// The maps, by these instructions.
fn compute(instructions: Int8, x: &Tensor, maps: &[Map<'_>]) -> Result<Vec<Tensor>> {
    let width = x.dim(D::Minus1)?;
    let contiguous = x.contiguous()?;
    let rows = Rows::from_f32(&View::from_tensor(&contiguous)?, width);
    maps.iter()
        .map(|map| {
            let bias = map.bias.map(Tensor::contiguous).transpose()?;
            let bias = bias.as_ref().map(View::from_tensor).transpose()?;
            let shape = (rows.len(), map.weight.n_outputs());
            let mut y = unwritten(shape.0 * shape.1);
            let Map { weight, function, .. } = *map;
            let product = Product { rows: &rows, weight, bias: bias.as_deref(), function };
            product.store(instructions, MatrixMut::new(&mut y, shape));
            tensor(y, with_last(x.dims(), shape.1))
        })
        .collect()
}
