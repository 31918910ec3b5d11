//! The kernels: a thread for each element.

use candle_core::{Result, Tensor};

use super::{NAME, widths};
use crate::autograd::graph::{Operation, record};
use crate::backend::cuda::{Buffer, Launch};
use crate::ops::activation::Function;

pub(super) fn gated(function: Function, x: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (x, v) = (x.contiguous()?, v.contiguous()?);
    let (repeat, period) = widths(&x, &v)?;
    let n = x.elem_count();
    let mut y = Buffer::like(&x)?;
    Launch::new("elementwise", "gate_forward", &x)?
        .over(n)
        .read(&x)?
        .read(&v)?
        .write(&mut y)?
        .size(n)
        .size(repeat)
        .size(period)
        .int(function.number())
        .run()?;
    record(Gated(function), &[&x, &v], y.value(x.shape()))
}

struct Gated(Function);

impl Operation for Gated {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads_output(&self) -> bool {
        false
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (x, v, function) = (&inputs[0], &inputs[1], self.0.number());
        let gradient = gradient.contiguous()?;
        let (repeat, period) = widths(x, v)?;
        let (mut dx, mut dv) = (Buffer::like(x)?, Buffer::like(v)?);
        Launch::new("elementwise", "gate_backward_x", x)?
            .over(x.elem_count())
            .read(x)?
            .read(v)?
            .read(&gradient)?
            .write(&mut dx)?
            .size(x.elem_count())
            .size(repeat)
            .size(period)
            .int(function)
            .run()?;
        Launch::new("elementwise", "gate_backward_v", x)?
            .over(v.elem_count())
            .read(x)?
            .read(&gradient)?
            .write(&mut dv)?
            .size(v.elem_count())
            .size(repeat)
            .size(period)
            .int(function)
            .run()?;
        Ok(vec![Some(dx.tensor(x.shape())?), Some(dv.tensor(v.shape())?)])
    }
}
