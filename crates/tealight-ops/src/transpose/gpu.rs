//! The kernel, which is its own backward.

use candle_core::{Result, Tensor};

use super::NAME;
use crate::gpu::{Buffer, Launch};
use crate::graph::{Operation, Value, constant, record};

pub(super) fn swap_axes(x: &Tensor) -> Result<Tensor> {
    let x = x.contiguous()?;
    record(SwapAxes, &[&x], swapped(&x)?)
}

/// `(batch, n, m, width)`, contiguous → `(batch, m, n, width)`
fn swapped(x: &Tensor) -> Result<Value> {
    let (batch, n, m, width) = x.dims4()?;
    let mut y = Buffer::like(x)?;
    Launch::new("elementwise", "swap_axes", x)?
        .over(x.elem_count())
        .read(x)?
        .write(&mut y)?
        .size(x.elem_count())
        .size(n)
        .size(m)
        .size(width)
        .run()?;
    Ok(y.value((batch, m, n, width)))
}

struct SwapAxes;

impl Operation for SwapAxes {
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
        Ok(vec![Some(constant(swapped(&gradient.contiguous()?)?)?)])
    }
}
