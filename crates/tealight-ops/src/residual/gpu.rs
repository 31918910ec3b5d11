//! The kernels: a thread for each element, or for each block of random words.

use candle_core::{Result, Tensor};

use super::NAME;
use crate::dropout::{self, Draw};
use crate::gpu::{Buffer, Launch};
use crate::graph::{Operation, constant, record};

pub(super) fn residual(x: &Tensor, change: &Tensor, draw: Option<Draw>) -> Result<Tensor> {
    let (x, change) = (x.contiguous()?, change.contiguous()?);
    let draw = draw.filter(|draw| draw.rate > 0.);
    let value = match draw {
        Some(draw) => dropout::gpu::of(Some(&x), &change, draw)?,
        None => sum(&x, &change)?.value(x.shape()),
    };
    record(Residual(draw), &[&x, &change], value)
}

/// Of contiguous tensors of one shape.
pub(crate) fn sum(a: &Tensor, b: &Tensor) -> Result<Buffer> {
    let mut sum = Buffer::like(a)?;
    Launch::new("elementwise", "add", a)?
        .over(a.elem_count())
        .read(a)?
        .read(b)?
        .write(&mut sum)?
        .size(a.elem_count())
        .run()?;
    Ok(sum)
}

struct Residual(Option<Draw>);

impl Operation for Residual {
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
        _: &[Tensor],
        _: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let dchange = match self.0 {
            Some(draw) => constant(dropout::gpu::of(None, &gradient.contiguous()?, draw)?)?,
            None => gradient.clone(),
        };
        Ok(vec![Some(gradient.clone()), Some(dchange)])
    }
}
