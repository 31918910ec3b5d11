//! Kernels with one block per row.

use candle_core::{D, Result, Tensor};

use crate::autograd::graph::{Operation, record};
use crate::backend::cuda::{Buffer, Launch, Source};

const KERNELS: Source = Source::new("softmax", &[include_str!("kernel.cu")]);

/// The result for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Weights,
    Logarithms,
}

pub(super) fn softmax(x: &Tensor, of: Of) -> Result<Tensor> {
    let x = x.contiguous()?;
    let width = x.dim(D::Minus1)?;
    let mut y = Buffer::like(&x)?;
    Launch::new(&KERNELS, "softmax_forward", &x)?
        .rows(x.elem_count() / width, width)
        .read(&x)?
        .write(&mut y)?
        .size(width)
        .int(of as i32)
        .run()?;
    record(Softmax(of), &[&x], y.value(x.shape()))
}

struct Softmax(Of);

impl Operation for Softmax {
    fn name(&self) -> &'static str {
        match self.0 {
            Of::Weights => "softmax",
            Of::Logarithms => "log-softmax",
        }
    }

    fn reads_input(&self, _: usize) -> bool {
        false
    }

    fn backward(
        self: Box<Self>,
        _: &[Tensor],
        y: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = gradient.contiguous()?;
        let width = y.dim(D::Minus1)?;
        let mut dx = Buffer::like(y)?;
        Launch::new(&KERNELS, "softmax_backward", y)?
            .rows(y.elem_count() / width, width)
            .reads([y, &gradient])?
            .write(&mut dx)?
            .size(width)
            .int(self.0 as i32)
            .run()?;
        Ok(vec![Some(dx.tensor(y.shape())?)])
    }
}
