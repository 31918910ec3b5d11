//! Matrix products, and sums over the rows for the bias.

use candle_core::{DType, Result, Tensor};

use super::{Map, NAME, operands, split, with_last};
use crate::autograd::graph::{Saved, Value, record_all, record_saving};
use crate::backend::buffer::contiguous;
use crate::backend::cuda::factor::{Factor, Sizes};
use crate::backend::cuda::product::{plus_product, product};
use crate::backend::cuda::sums;
use crate::ops::broadcast;

pub(super) fn linear(x: &Tensor, map: Map<'_>) -> Result<Tensor> {
    let inputs = contiguous(&operands(x, &[map])?)?;
    let has_bias = [map.bias.is_some()];
    let (x, maps) = split(&inputs, &has_bias);
    let y = forward(x, maps[0])?;
    record_saving(NAME, &inputs, y, Saved::Inputs, move |inputs, _, gradient| {
        gradients(inputs, &has_bias, &[Some(gradient.clone())])
    })
}

pub(super) fn linears(x: &Tensor, maps: &[Map<'_>]) -> Result<Vec<Tensor>> {
    let inputs = contiguous(&operands(x, maps)?)?;
    let have_bias: Vec<_> = maps.iter().map(|map| map.bias.is_some()).collect();
    let (x, maps) = split(&inputs, &have_bias);
    let values = maps.into_iter().map(|map| forward(x, map)).collect::<Result<_>>()?;
    record_all(NAME, &inputs, values, move |inputs, received| {
        gradients(inputs, &have_bias, &received)
    })
}

/// x Wᵀ + b of contiguous operands.
fn forward(x: &Tensor, map: Map<'_>) -> Result<Value> {
    let (n, k) = map.weight.dims2()?;
    let m = x.elem_count() / k;
    let (a, b) = (Factor::from_tensor(x), Factor::from_tensor(map.weight).transposed());
    let (sizes, shape) = (Sizes { batch: 1, m, n, k }, with_last(x.dims(), n));
    let y = match map.bias {
        // The product is added to rows of b before it is rounded to bf16.
        Some(bias) if bias.dtype() == DType::BF16 => {
            plus_product(broadcast::cuda::repeated(bias, m)?, a, b, sizes)?
        }
        Some(bias) => broadcast::cuda::sum(&product(a, b, sizes)?.tensor(shape.clone())?, bias)?,
        None => product(a, b, sizes)?,
    };
    Ok(y.value(shape))
}

/// The gradients of the inputs that need one, from those of the results that have received one. The products for the
/// gradient of x are summed by cuBLAS.
fn gradients(
    inputs: &[Tensor],
    have_bias: &[bool],
    received: &[Option<Tensor>],
) -> Result<Vec<Option<Tensor>>> {
    let (x, maps) = split(inputs, have_bias);
    let mut dx = None;
    let mut of_maps = Vec::new();
    for (Map { weight, bias }, g) in maps.into_iter().zip(received) {
        let (n, k) = weight.dims2()?;
        let m = x.elem_count() / k;
        if let Some(g) = g.as_ref().filter(|_| x.track_op()) {
            let (a, b) = (Factor::from_tensor(g), Factor::from_tensor(weight));
            let sizes = Sizes { batch: 1, m, n: k, k: n };
            dx = Some(match dx {
                Some(sum) => plus_product(sum, a, b, sizes)?,
                None => product(a, b, sizes)?,
            });
        }
        let dweight = |g: &Tensor| {
            let sizes = Sizes { batch: 1, m: n, n: k, k: m };
            product(Factor::from_tensor(g).transposed(), Factor::from_tensor(x), sizes)?
                .tensor(weight.shape())
        };
        let g_if_needed = |input: &Tensor| g.as_ref().filter(|_| input.track_op());
        of_maps.push(g_if_needed(weight).map(dweight).transpose()?);
        if let Some(bias) = bias {
            let dbias = |g: &Tensor| sums::over_rows(g, n)?.tensor(n);
            of_maps.push(g_if_needed(bias).map(dbias).transpose()?);
        }
    }
    let dx = dx.map(|sum| sum.tensor(x.shape())).transpose()?;
    Ok([dx].into_iter().chain(of_maps).collect())
}
