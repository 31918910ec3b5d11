//! Kernels with one thread per element.

use candle_core::{Result, Tensor};

use super::{NAME, widths};
use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::{Buffer, Launch, Source};
use crate::ops::activation::Function;

const KERNELS: Source =
    Source::new("gate", &[include_str!("../activation/functions.cuh"), include_str!("kernel.cu")]);

pub(super) fn gated(function: Function, x: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (x, v) = (x.contiguous()?, v.contiguous()?);
    let (repeat, period) = widths(&x, &v)?;
    let n = x.elem_count();
    let mut y = Buffer::like(&x)?;
    Launch::elementwise(&KERNELS, "gate_forward", [&x, &v], &mut y, n)?
        .sizes([repeat, period])
        .int(function as i32)
        .run()?;
    let y = y.value(x.shape());
    record_saving(NAME, &[&x, &v], y, Saved::Inputs, move |inputs, _, gradient| {
        let (x, v) = (&inputs[0], &inputs[1]);
        let (mut dx, mut dv) = (Buffer::like(x)?, Buffer::like(v)?);
        Launch::elementwise(&KERNELS, "gate_backward_x", [x, v, gradient], &mut dx, n)?
            .sizes([repeat, period])
            .int(function as i32)
            .run()?;
        Launch::elementwise(&KERNELS, "gate_backward_v", [x, gradient], &mut dv, v.elem_count())?
            .sizes([repeat, period])
            .int(function as i32)
            .run()?;
        Ok(vec![Some(dx.tensor(x.shape())?), Some(dv.tensor(v.shape())?)])
    })
}
