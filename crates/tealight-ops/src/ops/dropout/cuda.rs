//! A kernel with one thread per block of random words. The backward applies it to the gradient.

use candle_core::{Result, Tensor};

use super::{Draw, threshold};
use crate::autograd::graph::record_linear;
use crate::backend::cuda::{Buffer, Key, Launch, Source};

const KERNELS: Source = Source::new("dropout", &[include_str!("kernel.cu")]);

pub(super) fn dropout(x: &Tensor, draw: Draw) -> Result<Tensor> {
    let x = x.contiguous()?;
    let y = add_dropped(None, &x, draw)?.value(x.shape());
    record_linear("dropout", &[&x], y, move |gradient| Ok(vec![Some(again(gradient, draw)?)]))
}

/// The gradient of x, from the same draws.
pub(crate) fn again(gradient: &Tensor, draw: Draw) -> Result<Tensor> {
    add_dropped(None, gradient, draw)?.tensor(gradient.shape())
}

/// base + Dropout(x), of contiguous tensors of one shape.
pub(crate) fn add_dropped(base: Option<&Tensor>, x: &Tensor, draw: Draw) -> Result<Buffer> {
    let n = x.elem_count();
    let mut y = Buffer::like(x)?;
    Launch::new(&KERNELS, "dropout", x)?
        .over(n.div_ceil(4))
        .read_if(base)?
        .read(x)?
        .write(&mut y)?
        .size(n)
        .plain(Key::from_stream(draw.stream)?)
        .word(threshold(draw.rate))
        .number(1. / (1. - draw.rate))
        .run()?;
    Ok(y)
}
