//! The kernels: a thread for each element; the gradient of v in parts of some examples.

use candle_core::{Result, Tensor};

use super::NAME;
use crate::gpu::{Buffer, Launch, sums};
use crate::graph::{Operation, record};

pub(super) fn broadcast_add(x: &Tensor, v: &Tensor) -> Result<Tensor> {
    let (x, v) = (x.contiguous()?, v.contiguous()?);
    record(BroadcastAdd, &[&x, &v], sum(&x, &v)?.value(x.shape()))
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

struct BroadcastAdd;

impl Operation for BroadcastAdd {
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
        let v = &inputs[1];
        let dv = || sums::over_rows(&gradient.contiguous()?, v.elem_count())?.tensor(v.shape());
        Ok(vec![Some(gradient.clone()), v.track_op().then(dv).transpose()?])
    }
}
