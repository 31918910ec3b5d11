//! A kernel with one thread per pack of elements; the gradient of v is a sum over rows.

use candle_core::{Result, Tensor};

use super::NAME;
use crate::autograd::graph::record_linear;
use crate::backend::cuda::{Buffer, Launch, Source, sums};

const KERNELS: Source = Source::new("broadcast", &[include_str!("kernel.cu")]);

pub(super) fn broadcast_add(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (x, v) = (x.contiguous()?, v.contiguous()?);
    let (is_learnt, shape) = (v.track_op(), v.shape().clone());
    record_linear(NAME, &[&x, &v], sum(&x, &v)?.value(x.shape()), move |gradient| {
        let n = shape.elem_count();
        let dv = || sums::over_rows(gradient, n)?.tensor(shape);
        Ok(vec![Some(gradient.clone()), is_learnt.then(dv).transpose()?])
    })
}

/// x + v, where v is broadcast over the leading axes. Both are contiguous.
pub(crate) fn sum(x: &Tensor, v: &Tensor) -> Result<Buffer> {
    let mut y = Buffer::like(x)?;
    Launch::packwise(&KERNELS, "add_vector", [x, v], &mut y, x.elem_count())?
        .size(v.elem_count())
        .run()?;
    Ok(y)
}

/// `v (width)`, contiguous → `(n_rows, width)`
pub(crate) fn repeated(v: &Tensor, n_rows: usize) -> Result<Buffer> {
    let (width, n) = (v.elem_count(), n_rows * v.elem_count());
    let mut y = Buffer::unwritten(n, v.dtype(), v.device())?;
    Launch::packwise(&KERNELS, "repeat_vector", [v], &mut y, n)?.size(width).run()?;
    Ok(y)
}
