//! Kernels with one thread per element.

use candle_core::{Result, Tensor};

use super::{NAME, widths};
use crate::autograd::graph::{Operation, record};
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
        let (n, n_v) = (x.elem_count(), v.elem_count());
        Launch::elementwise(&KERNELS, "gate_backward_x", [x, v, &gradient], &mut dx, n)?
            .sizes([repeat, period])
            .int(function)
            .run()?;
        Launch::elementwise(&KERNELS, "gate_backward_v", [x, &gradient], &mut dv, n_v)?
            .sizes([repeat, period])
            .int(function)
            .run()?;
        Ok(vec![Some(dx.tensor(x.shape())?), Some(dv.tensor(v.shape())?)])
    }
}
