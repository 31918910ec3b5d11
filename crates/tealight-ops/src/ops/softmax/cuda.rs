//! Kernels with one block per row.

use candle_core::{D, Result, Tensor};

use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::{Buffer, Launch, Source};

const KERNELS: Source = Source::new("softmax", &[include_str!("kernel.cu")]);

/// The result for a row: `in_logarithms` of the kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowResult {
    Weights = 0,
    Logarithms = 1,
}

pub(super) fn softmax(name: &'static str, x: &Tensor, result: RowResult) -> Result<Tensor> {
    let x = x.contiguous()?;
    let width = x.dim(D::Minus1)?;
    let mut y = Buffer::like(&x)?;
    Launch::new(&KERNELS, "softmax_forward", &x)?
        .rows(x.elem_count() / width, width)
        .read(&x)?
        .write(&mut y)?
        .size(width)
        .int(result as i32)
        .run()?;
    let y = y.value(x.shape());
    record_saving(name, &[&x], y, Saved::Output, move |_, y, gradient| {
        let mut dx = Buffer::like(y)?;
        Launch::new(&KERNELS, "softmax_backward", y)?
            .rows(y.elem_count() / width, width)
            .reads([y, gradient])?
            .write(&mut dx)?
            .size(width)
            .int(result as i32)
            .run()?;
        Ok(vec![Some(dx.tensor(y.shape())?)])
    })
}
