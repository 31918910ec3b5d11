//! A kernel with one thread per pair of channels.

use candle_core::{Result, Tensor};

use super::{Layout, Rows};
use crate::autograd::graph::record_linear;
use crate::backend::cuda::{Buffer, Launch, Source};

const KERNELS: Source = Source::new("rotary", &[include_str!("kernel.cu")]);

pub(super) fn rotate(
    x: &Tensor,
    cos: &Tensor,
    sin: &Tensor,
    layout: Layout,
    rows: Rows,
) -> Result<Tensor> {
    let (cos, sin) = (cos.detach().contiguous()?, sin.detach().contiguous()?);
    let x = x.contiguous()?;
    let rotation = Rotation { cos, sin, layout, rows };
    let y = rotation.of(&x, 1)?.value(x.shape());
    record_linear("rotary", &[&x], y, move |gradient| {
        let gradient = gradient.contiguous()?;
        Ok(vec![Some(rotation.of(&gradient, -1)?.tensor(gradient.shape())?)])
    })
}

struct Rotation {
    cos: Tensor,
    sin: Tensor,
    layout: Layout,
    rows: Rows,
}

impl Rotation {
    /// `x` rotated by `direction` (1 or −1) times the angles.
    fn of(&self, x: &Tensor, direction: i32) -> Result<Buffer> {
        let (Rows { len, repeated, .. }, half) = (self.rows, self.cos.dim(1)?);
        let n_pairs = x.elem_count() / 2;
        let mut y = Buffer::like(x)?;
        Launch::elementwise(&KERNELS, "rotate", [x, &self.cos, &self.sin], &mut y, n_pairs)?
            .sizes([len, repeated, half])
            .int((self.layout == Layout::Interleaved).into())
            .int(direction)
            .run()?;
        Ok(y)
    }
}
