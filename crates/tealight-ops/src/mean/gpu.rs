//! The kernels: a thread for each element of the result, and of the gradient.

use candle_core::{Result, Tensor};

use super::NAME;
use crate::gpu::{Buffer, Launch};
use crate::graph::{Operation, record};

pub(super) fn mean(x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    let (batch, len, width) = x.dims3()?;
    let mut y = Buffer::unwritten(batch * width, x.dtype(), x.device())?;
    Launch::new("elementwise", "mean_forward", &x)?
        .over(batch * width)
        .read(&x)?
        .write(&mut y)?
        .size(batch * width)
        .size(len)
        .size(width)
        .run()?;
    record(Mean, &[&x], y.value((batch, width)))
}

struct Mean;

impl Operation for Mean {
    fn name(&self) -> &'static str {
        NAME
    }

    fn reads_input(&self, _: usize) -> bool {
        false
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
        let (x, gradient) = (&inputs[0], gradient.contiguous()?);
        let (_, len, width) = x.dims3()?;
        let n = x.elem_count();
        let mut dx = Buffer::unwritten(n, gradient.dtype(), gradient.device())?;
        Launch::new("elementwise", "mean_backward", &gradient)?
            .over(n)
            .read(&gradient)?
            .write(&mut dx)?
            .size(n)
            .size(len)
            .size(width)
            .run()?;
        Ok(vec![Some(dx.tensor(x.shape())?)])
    }
}
