//! Kernels with one thread per element of the result.

use candle_core::{Result, Tensor};

use super::NAME;
use crate::autograd::graph::record_linear;
use crate::backend::cuda::{Buffer, Launch, Source};

const KERNELS: Source = Source::new("mean", &[include_str!("kernel.cu")]);

pub(super) fn mean(x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (batch, len, width) = x.dims3()?;
    let n = batch * width;
    let mut y = Buffer::unwritten(n, x.dtype(), x.device())?;
    Launch::elementwise(&KERNELS, "mean_forward", [&x], &mut y, n)?.sizes([len, width]).run()?;
    record_linear(NAME, &[&x], y.value((batch, width)), move |gradient| {
        let n = batch * len * width;
        let mut dx = Buffer::unwritten(n, gradient.dtype(), gradient.device())?;
        Launch::elementwise(&KERNELS, "mean_backward", [gradient], &mut dx, n)?
            .sizes([len, width])
            .run()?;
        Ok(vec![Some(dx.tensor((batch, len, width))?)])
    })
}
