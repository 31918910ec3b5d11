//! Kernels with one thread per pack of elements.

use candle_core::{Result, Tensor};

use super::Function;
use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::{Buffer, Launch, Source};

const KERNELS: Source =
    Source::new("activation", &[include_str!("functions.cuh"), include_str!("kernel.cu")]);

pub(super) fn activation(x: &Tensor, function: Function, name: &'static str) -> Result<Tensor> {
    let x = x.contiguous()?;
    let n = x.elem_count();
    let mut y = Buffer::like(&x)?;
    let launch = Launch::packwise(&KERNELS, "activation_forward", [&x], &mut y, n)?;
    launch.int(function as i32).run()?;
    record_saving(name, &[&x], y.value(x.shape()), Saved::Inputs, move |inputs, _, gradient| {
        let x = &inputs[0];
        let mut dx = Buffer::like(x)?;
        Launch::packwise(&KERNELS, "activation_backward", [x, gradient], &mut dx, n)?
            .int(function as i32)
            .run()?;
        Ok(vec![Some(dx.tensor(x.shape())?)])
    })
}
