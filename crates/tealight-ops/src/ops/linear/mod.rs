//! The linear map, and several of one input.
//!
//! ```text
//! y = x Wᵀ + b                               yᵢ = x Wᵢᵀ + bᵢ
//!
//! dx = g W,   dW = gᵀ x,   db = Σ g          dx = g₁ W₁ + g₂ W₂ + ..          Σ over the rows
//! ```
//!
//! Cost: three matrix products of 2·rows·in·out operations each, one forward and two backward. The
//! bias is where the product begins its sums, and costs nothing.
//!
//! In half precision the products are Candle's: they take and give the operands' dtype, for which
//! there is special hardware; how wide they add up inside is the backend's choice. The result is
//! rounded once after the product and once after the bias.

pub(crate) mod cpu;
mod cuda;
pub mod reference;

use std::marker::PhantomData;

use candle_core::{D, Result, Shape, Tensor, bail};

use crate::autograd::graph::{Operation, Several, record, record_all};
use crate::backend::buffer::{stored, tensor};
use crate::backend::choice::Backend;
use crate::backend::profile::{Pass, timed};
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
    match backend(x, &[map])? {
        Backend::F32 => fused::<f32>(x, map),
        Backend::F64 => fused::<f64>(x, map),
        Backend::Cuda => cuda::linear(x, map),
        Backend::Reference => reference::linear(x, weight, bias),
    }
}

/// What each of `maps` makes of `x (.., in)`: `(.., out)`. The same as [`linear`] of each; but the
/// work is shared out once, and the gradients of `x` are added where they arise.
///
/// # Errors
/// If the widths do not match.
pub fn linears<const N: usize>(x: &Tensor, maps: [Map<'_>; N]) -> Result<[Tensor; N]> {
    let results = match backend(x, &maps)? {
        Backend::F32 => fused_all::<f32>(x, &maps),
        Backend::F64 => fused_all::<f64>(x, &maps),
        Backend::Cuda => maps.iter().map(|map| cuda::linear(x, *map)).collect(),
        Backend::Reference => {
            maps.iter().map(|map| reference::linear(x, map.weight, map.bias)).collect()
        }
    };
    let Ok(results) = results?.try_into() else { bail!("expected a result of each of {N} maps") };
    Ok(results)
}

fn backend(x: &Tensor, maps: &[Map<'_>]) -> Result<Backend> {
    let mut operands = vec![x];
    for Map { weight, bias } in maps {
        let (n_outputs, n_inputs) = weight.dims2()?;
        if x.dim(D::Minus1)? != n_inputs || bias.is_some_and(|bias| bias.dims() != [n_outputs]) {
            let bias = bias.map(Tensor::shape);
            bail!("linear of x {:?}, weight {:?}, bias {bias:?}", x.shape(), weight.shape())
        }
        operands.extend([Some(*weight), *bias].into_iter().flatten());
    }
    Ok(Backend::of(&operands))
}

fn fused<T: Lanes>(x: &Tensor, map: Map<'_>) -> Result<Tensor> {
    let inputs = contiguous(x, &[map])?;
    let (x, maps) = split(&inputs, std::iter::once(map.bias.is_some()));
    let mut y = timed(NAME, Pass::Forward, || cpu::forward::<T>(x, &maps))?;
    let value = stored(y.remove(0), with_last(x.dims(), map.weight.dim(0)?));
    record(Linear::<T>(PhantomData), &inputs.iter().collect::<Vec<_>>(), value)
}

fn fused_all<T: Lanes>(x: &Tensor, maps: &[Map<'_>]) -> Result<Vec<Tensor>> {
    let inputs = contiguous(x, maps)?;
    let biased: Vec<_> = maps.iter().map(|map| map.bias.is_some()).collect();
    let (x, maps) = split(&inputs, biased.iter().copied());
    let results = timed(NAME, Pass::Forward, || cpu::forward::<T>(x, &maps))?;
    let values = results.into_iter().zip(&maps).map(|(y, map)| {
        let shape = with_last(x.dims(), map.weight.dim(0)?);
        Ok(stored(y, shape))
    });
    let values = values.collect::<Result<_>>()?;
    let operation = Linears::<T> { biased, element: PhantomData };
    record_all(operation, &inputs.iter().collect::<Vec<_>>(), values)
}

const NAME: &str = "linear";

/// x and, of each map, the weight and perhaps the bias: the inputs in the graph.
fn contiguous(x: &Tensor, maps: &[Map<'_>]) -> Result<Vec<Tensor>> {
    let maps = maps.iter().flat_map(|map| [Some(map.weight), map.bias]).flatten();
    std::iter::once(x).chain(maps).map(Tensor::contiguous).collect()
}

/// The inputs in the graph as x and maps, which are `biased` or not.
pub(crate) fn split(
    inputs: &[Tensor],
    biased: impl Iterator<Item = bool>,
) -> (&Tensor, Vec<Map<'_>>) {
    let mut rest = inputs[1..].iter();
    let mut next = || rest.next().expect("invariant: the inputs are those of the forward");
    let map = |biased: bool| Map { weight: next(), bias: biased.then(&mut next) };
    (&inputs[0], biased.map(map).collect())
}

struct Linear<T>(PhantomData<T>);

impl<T: Lanes> Operation for Linear<T> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads_output(&self) -> bool {
        false
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let biased = std::iter::once(inputs.len() == 3);
        backward::<T>(inputs, biased, &[Some(gradient.contiguous()?)])
    }
}

struct Linears<T> {
    biased: Vec<bool>,
    element: PhantomData<T>,
}

impl<T: Lanes> Several for Linears<T> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        gradients: Vec<Option<Tensor>>,
    ) -> Result<Vec<Option<Tensor>>> {
        let contiguous = |g: Option<Tensor>| g.map(|g| g.contiguous()).transpose();
        let gradients = gradients.into_iter().map(contiguous).collect::<Result<Vec<_>>>()?;
        backward::<T>(inputs, self.biased.into_iter(), &gradients)
    }
}

/// Of each of `inputs` only if it is asked for: a product costs too much to be thrown away.
fn backward<T: Lanes>(
    inputs: &[Tensor],
    biased: impl Iterator<Item = bool>,
    gradients: &[Option<Tensor>],
) -> Result<Vec<Option<Tensor>>> {
    let (x, maps) = split(inputs, biased);
    let is_needed = inputs.iter().map(Tensor::track_op);
    let results = cpu::backward::<T>(x, &maps, gradients, is_needed)?;
    let results = results.into_iter().zip(inputs);
    results.map(|(g, input)| g.map(|g| tensor(g, input.shape())).transpose()).collect()
}

fn with_last(dims: &[usize], width: usize) -> Shape {
    let mut dims = dims.to_vec();
    dims.pop();
    dims.push(width);
    dims.into()
}
