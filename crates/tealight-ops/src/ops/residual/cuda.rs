//! The kernels: a thread for each element, or for each block of random words.

use candle_core::{Result, Tensor};

use super::NAME;
use crate::autograd::graph::record_linear;
use crate::backend::cuda::{Buffer, Launch};
use crate::ops::dropout::{self, Draw};

pub(super) fn residual(x: &Tensor, change: &Tensor, draw: Option<Draw>) -> Result<Tensor> {
    let (x, change) = (x.contiguous()?, change.contiguous()?);
    let draw = draw.filter(|draw| draw.rate > 0.);
    let y = match draw {
        Some(draw) => dropout::cuda::of(Some(&x), &change, draw)?,
        None => sum(&x, &change)?,
    };
    record_linear(NAME, &[&x, &change], y.value(x.shape()), move |gradient| {
        let dchange = draw.map(|draw| dropout::cuda::again(gradient, draw)).transpose()?;
        Ok(vec![Some(gradient.clone()), Some(dchange.unwrap_or_else(|| gradient.clone()))])
    })
}

/// Of contiguous tensors of one shape.
pub(crate) fn sum(a: &Tensor, b: &Tensor) -> Result<Buffer> {
    let mut sum = Buffer::like(a)?;
    Launch::new("elementwise", "add", a)?
        .over(a.elem_count())
        .read(a)?
        .read(b)?
        .write(&mut sum)?
        .size(a.elem_count())
        .run()?;
    Ok(sum)
}
