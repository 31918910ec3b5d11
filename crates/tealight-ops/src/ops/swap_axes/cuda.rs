//! A kernel with one thread per element. The backward swaps the axes back.

use candle_core::{Result, Tensor};

use super::NAME;
use crate::autograd::graph::record_linear;
use crate::backend::cuda::{Buffer, Launch, Source};

const KERNELS: Source = Source::new("swap_axes", &[include_str!("kernel.cu")]);

pub(super) fn swap_axes(x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (batch, n, m, width) = x.dims4()?;
    let y = swapped(&x)?.value((batch, m, n, width));
    record_linear(NAME, &[&x], y, move |gradient| {
        Ok(vec![Some(swapped(gradient)?.tensor((batch, n, m, width))?)])
    })
}

/// `(batch, n, m, width)`, contiguous → `(batch, m, n, width)`
fn swapped(x: &Tensor) -> Result<Buffer> {
    let (_, n, m, width) = x.dims4()?;
    let mut y = Buffer::like(x)?;
    Launch::elementwise(&KERNELS, "swap_axes", [x], &mut y, x.elem_count())?
        .sizes([n, m, width])
        .run()?;
    Ok(y)
}
