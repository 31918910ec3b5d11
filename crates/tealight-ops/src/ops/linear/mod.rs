//! The linear map, and several linear maps of one input.
//!
//! ```text
//! y = x Wᵀ + b                               yᵢ = x Wᵢᵀ + bᵢ
//!
//! dx = g W,   dW = gᵀ x,   db = Σ g          dx = g₁ W₁ + g₂ W₂ + ..          Σ over the rows
//! ```
//!
//! Cost: three matrix products of 2·rows·in·out operations each, one forward and two backward. The sums
//! of the product start from the bias, which therefore costs nothing.
//!
//! In half precision, sums and bias are added in f32 and y is rounded once. If x Wᵀ were
//! rounded as well, before the bias is added, the logits of BERT in bf16 would be a tenth less accurate.

pub(crate) mod cpu;
mod cuda;
pub mod reference;

use candle_core::{D, Result, Shape, Tensor, bail};

use crate::autograd::graph::{Saved, record_all, record_saving};
use crate::backend::buffer::{self, contiguous, stored};
use crate::backend::choice::dispatch;
use crate::backend::profile::{Phase, timed};
use crate::backend::simd::vector::Lanes;

/// `weight (out, in)`, `bias (out)`: the map x Wᵀ + b.
#[derive(Clone, Copy, Debug)]
pub struct Map<'a> {
    /// W.
    pub weight: &'a Tensor,
    /// b.
    pub bias: Option<&'a Tensor>,
}

/// `x (.., in)`, `weight (out, in)`, `bias (out)` → `(.., out)`
///
/// # Errors
/// If the widths do not match.
pub fn linear(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    let map = Map { weight, bias };
    let operands = operands(x, &[map])?;
    dispatch!(match operands {
        Cpu(T) => on_cpu::<T>(x, map),
        Cuda => cuda::linear(x, map),
        Reference => reference::linear(x, weight, bias),
    })
}

/// x Wᵀ + b of each of `maps`, for `x (.., in)`: `(.., out)`. The same as [`linear`] of each, but the
/// threads share all products at once, and the gradients of `x` are summed by the product.
///
/// # Errors
/// If the widths do not match.
pub fn linears<const N: usize>(x: &Tensor, maps: [Map<'_>; N]) -> Result<[Tensor; N]> {
    let Ok(results) = all(x, &maps)?.try_into() else {
        bail!("expected a result of each of {N} maps")
    };
    Ok(results)
}

/// As [`linears`]. Its code, all products of matrices, is in this crate, and not in each that asks for another number of
/// maps.
fn all(x: &Tensor, maps: &[Map<'_>]) -> Result<Vec<Tensor>> {
    let operands = operands(x, maps)?;
    dispatch!(match operands {
        Cpu(T) => all_on_cpu::<T>(x, maps),
        Cuda => cuda::linears(x, maps),
        Reference => maps.iter().map(|map| reference::linear(x, map.weight, map.bias)).collect(),
    })
}

/// The inputs in the graph: x, then the weight and, if there is one, the bias of each map.
fn operands<'a>(x: &'a Tensor, maps: &[Map<'a>]) -> Result<Vec<&'a Tensor>> {
    let mut operands = vec![x];
    for Map { weight, bias } in maps {
        let (n_outputs, n_inputs) = weight.dims2()?;
        if x.dim(D::Minus1)? != n_inputs || bias.is_some_and(|bias| bias.dims() != [n_outputs]) {
            let bias = bias.map(Tensor::shape);
            bail!(
                "linear of x {:?}, weight {:?}, bias {bias:?}: expected (.., in), (out, in), (out)",
                x.shape(),
                weight.shape()
            )
        }
        operands.extend([Some(*weight), *bias].into_iter().flatten());
    }
    Ok(operands)
}

fn on_cpu<T: Lanes>(x: &Tensor, map: Map<'_>) -> Result<Tensor> {
    let inputs = contiguous(&operands(x, &[map])?)?;
    let has_bias = [map.bias.is_some()];
    let (x, maps) = split(&inputs, &has_bias);
    let mut y = timed(NAME, Phase::Forward, || cpu::forward::<T>(x, &maps))?;
    let (n_outputs, _) = map.weight.dims2()?;
    let value = stored(y.remove(0), with_last(x.dims(), n_outputs));
    record_saving(NAME, &inputs, value, Saved::Inputs, move |inputs, _, gradient| {
        backward::<T>(inputs, &has_bias, &[Some(gradient.clone())])
    })
}

fn all_on_cpu<T: Lanes>(x: &Tensor, maps: &[Map<'_>]) -> Result<Vec<Tensor>> {
    let inputs = contiguous(&operands(x, maps)?)?;
    let have_bias: Vec<_> = maps.iter().map(|map| map.bias.is_some()).collect();
    let (x, maps) = split(&inputs, &have_bias);
    let results = timed(NAME, Phase::Forward, || cpu::forward::<T>(x, &maps))?;
    let values = results.into_iter().zip(&maps).map(|(y, map)| {
        let (n_outputs, _) = map.weight.dims2()?;
        Ok(stored(y, with_last(x.dims(), n_outputs)))
    });
    let values = values.collect::<Result<_>>()?;
    record_all(NAME, &inputs, values, move |inputs, gradients| {
        backward::<T>(inputs, &have_bias, &gradients)
    })
}

const NAME: &str = "linear";

/// Splits the inputs in the graph into x and maps. `have_bias`: for each map, whether it has a bias.
pub(crate) fn split<'a>(inputs: &'a [Tensor], have_bias: &[bool]) -> (&'a Tensor, Vec<Map<'a>>) {
    let mut rest = inputs[1..].iter();
    let mut next = || rest.next().expect("invariant: the inputs are those of the forward");
    let map = |&has_bias: &bool| Map { weight: next(), bias: has_bias.then(&mut next) };
    (&inputs[0], have_bias.iter().map(map).collect())
}

/// Computes only the gradients of inputs that need one.
fn backward<T: Lanes>(
    inputs: &[Tensor],
    have_bias: &[bool],
    gradients: &[Option<Tensor>],
) -> Result<Vec<Option<Tensor>>> {
    let (x, maps) = split(inputs, have_bias);
    let is_needed = inputs.iter().map(Tensor::track_op);
    buffer::gradients(cpu::backward::<T>(x, &maps, gradients, is_needed)?, inputs)
}

/// `dims` with `width` as the last.
pub(crate) fn with_last(dims: &[usize], width: usize) -> Shape {
    let mut dims = dims.to_vec();
    dims.pop();
    dims.push(width);
    dims.into()
}
