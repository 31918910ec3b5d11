//! The kernels of dropout and of sums.

use candle_core::{Result, Tensor};

use super::NAME;
use crate::autograd::graph::record_linear;
use crate::autograd::sum::added;
use crate::ops::dropout::{self, Draw};

pub(super) fn residual(x: &Tensor, change: &Tensor, draw: Option<Draw>) -> Result<Tensor> {
    let (x, change) = (x.contiguous()?, change.contiguous()?);
    let draw = draw.filter(|draw| draw.rate > 0.);
    let y = match draw {
        Some(draw) => dropout::cuda::add_dropped(Some(&x), &change, draw)?,
        None => added(&x, &change)?,
    };
    record_linear(NAME, &[&x, &change], y.value(x.shape()), move |gradient| {
        let dchange = draw.map(|draw| dropout::cuda::again(gradient, draw)).transpose()?;
        Ok(vec![Some(gradient.clone()), Some(dchange.unwrap_or_else(|| gradient.clone()))])
    })
}
