//! Matrix products, and sums over the rows for the bias.

use candle_core::{DType, Result, Tensor};

use super::{Map, NAME, with_last};
use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::factor::{Factor, Sizes};
use crate::backend::cuda::product::{plus_product, product};
use crate::backend::cuda::sums;
use crate::ops::broadcast;

pub(super) fn linear(x: &Tensor, map: Map<'_>) -> Result<Tensor> {
    let (n, k) = map.weight.dims2()?;
    let (x, weight) = (x.contiguous()?, map.weight.contiguous()?);
    let bias = map.bias.map(Tensor::contiguous).transpose()?;
    let m = x.elem_count() / k;
    let (a, b) = (Factor::from_tensor(&x), Factor::from_tensor(&weight).transposed());
    let (sizes, shape) = (Sizes { batch: 1, m, n, k }, with_last(x.dims(), n));
    let y = match &bias {
        // The product is added to rows of b before it is rounded to bf16.
        Some(bias) if bias.dtype() == DType::BF16 => {
            plus_product(broadcast::cuda::repeated(bias, m)?, a, b, sizes)?
        }
        Some(bias) => broadcast::cuda::sum(&product(a, b, sizes)?.tensor(shape.clone())?, bias)?,
        None => product(a, b, sizes)?,
    };
    let inputs: Vec<_> = [Some(&x), Some(&weight), bias.as_ref()].into_iter().flatten().collect();
    record_saving(NAME, &inputs, y.value(shape), Saved::Inputs, |inputs, _, gradient| {
        gradients(inputs, gradient)
    })
}

/// The gradients of the inputs that need one.
fn gradients(inputs: &[Tensor], g: &Tensor) -> Result<Vec<Option<Tensor>>> {
    let (x, weight) = (&inputs[0], &inputs[1]);
    let (n, k) = weight.dims2()?;
    let m = x.elem_count() / k;
    let dx = || {
        let sizes = Sizes { batch: 1, m, n: k, k: n };
        product(Factor::from_tensor(g), Factor::from_tensor(weight), sizes)?.tensor(x.shape())
    };
    let dweight = || {
        let sizes = Sizes { batch: 1, m: n, n: k, k: m };
        product(Factor::from_tensor(g).transposed(), Factor::from_tensor(x), sizes)?
            .tensor(weight.shape())
    };
    let mut gradients =
        vec![x.track_op().then(dx).transpose()?, weight.track_op().then(dweight).transpose()?];
    if let Some(bias) = inputs.get(2) {
        let dbias = || sums::over_rows(g, n)?.tensor(n);
        gradients.push(bias.track_op().then(dbias).transpose()?);
    }
    Ok(gradients)
}
