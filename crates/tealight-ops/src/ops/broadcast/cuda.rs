//! The kernels: a thread for each element; the gradient of v in parts of some examples.

use candle_core::{Result, Tensor};

use super::NAME;
use crate::autograd::graph::record_linear;
use crate::backend::cuda::{Buffer, Launch, sums};

pub(super) fn broadcast_add(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (x, v) = (x.contiguous()?, v.contiguous()?);
    let (is_learnt, shape) = (v.track_op(), v.shape().clone());
    record_linear(NAME, &[&x, &v], sum(&x, &v)?.value(x.shape()), move |gradient| {
        let n = shape.elem_count();
        let dv = || sums::over_rows(&gradient.contiguous()?, n)?.tensor(shape);
        Ok(vec![Some(gradient.clone()), is_learnt.then(dv).transpose()?])
    })
}

/// x + v, v again and again, of contiguous tensors.
pub(crate) fn sum(x: &Tensor, v: &Tensor) -> Result<Buffer> {
    let mut y = Buffer::like(x)?;
    Launch::new("elementwise", "add_vector", x)?
        .over(x.elem_count())
        .read(x)?
        .read(v)?
        .write(&mut y)?
        .size(x.elem_count())
        .size(v.elem_count())
        .run()?;
    Ok(y)
}
