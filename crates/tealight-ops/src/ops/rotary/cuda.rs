//! A kernel with one thread per pair of channels.

use candle_core::{Result, Tensor};

use super::{Layout, Rotation};
use crate::autograd::graph::record_linear;
use crate::backend::cuda::{Buffer, Launch, Source, wide};

const KERNELS: Source = Source::new("rotary", &[include_str!("kernel.cu")]);

pub(super) fn rotate(x: &Tensor, rotation: Rotation) -> Result<Tensor> {
    let x = x.contiguous()?;
    // Angles are not rounded to half precision, even if x is.
    let Rotation { cos, sin, layout, len, repeated } = rotation.tables_in(wide(x.dtype()))?;
    // `x` rotated by `direction` (1 or −1) times the angles.
    let rotated = move |x: &Tensor, direction: i32| {
        let (n_pairs, (_, half)) = (x.elem_count() / 2, cos.dims2()?);
        let mut y = Buffer::like(x)?;
        Launch::elementwise(&KERNELS, "rotate", [x, &cos, &sin], &mut y, n_pairs)?
            .sizes([len, repeated, half])
            .int((layout == Layout::Interleaved).into())
            .int(direction)
            .run()?;
        Result::Ok(y)
    };
    let y = rotated(&x, 1)?.value(x.shape());
    record_linear("rotary", &[&x], y, move |gradient| {
        Ok(vec![Some(rotated(gradient, -1)?.tensor(gradient.shape())?)])
    })
}
