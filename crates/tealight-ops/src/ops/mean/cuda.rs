//! The kernels: a thread for each element of the result, and of the gradient.

use candle_core::{Result, Tensor};

use super::NAME;
use crate::autograd::graph::record_linear;
use crate::backend::cuda::{Buffer, Launch};

pub(super) fn mean(x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (batch, len, width) = x.dims3()?;
    let n = batch * width;
    let mut y = Buffer::unwritten(n, x.dtype(), x.device())?;
    Launch::map("mean_forward", &x, &mut y, n)?.size(len).size(width).run()?;
    record_linear(NAME, &[&x], y.value((batch, width)), move |gradient| {
        let gradient = gradient.contiguous()?;
        let n = batch * len * width;
        let mut dx = Buffer::unwritten(n, gradient.dtype(), gradient.device())?;
        Launch::map("mean_backward", &gradient, &mut dx, n)?.size(len).size(width).run()?;
        Ok(vec![Some(dx.tensor((batch, len, width))?)])
    })
}
