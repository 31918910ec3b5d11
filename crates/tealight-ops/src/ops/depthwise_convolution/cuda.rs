//! A kernel with one thread per element; the gradient of the weight is a sum over positions.

use bytemuck::NoUninit;
use candle_core::{Result, Tensor};

use super::NAME;
use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::{Buffer, Launch, Source, int, long, sums, wide};

const KERNELS: Source = Source::new("depthwise_convolution", &[include_str!("kernel.cu")]);

/// `Convolution` in `kernel.cu`.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Sizes {
    len: i64,
    width: i64,
    n_heads: i32,
    kernel: i32,
}

pub(super) fn convolution(x: &Tensor, weight: &Tensor, mask: Option<&Tensor>) -> Result<Tensor> {
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    let padding = mask.map(Tensor::contiguous).transpose()?;
    let (batch, n_heads, len, width) = x.dims4()?;
    let (_, _, kernel, _) = weight.dims4()?;
    let sizes = Sizes {
        len: long(len)?,
        width: long(width)?,
        n_heads: int(n_heads)?,
        kernel: int(kernel)?,
    };
    // The convolution of `x`; with the kernel reversed, the gradient of `x` from the gradient of the result.
    let convolve =
        move |x: &Tensor, weight: &Tensor, padding: Option<&Tensor>, is_reversed: bool| {
            let mut y = Buffer::like(x)?;
            Launch::new(&KERNELS, "convolve", x)?
                .over(x.elem_count())
                .reads([x, weight])?
                .read_if(padding)?
                .write(&mut y)?
                .size(x.elem_count())
                .plain(sizes)
                .int(is_reversed.into())
                .run()?;
            Result::Ok(y)
        };
    let y = convolve(&x, &weight, padding.as_ref(), false)?.value(x.shape());
    record_saving(NAME, &[&x, &weight], y, Saved::Inputs, move |inputs, _, gradient| {
        let (x, weight) = (&inputs[0], &inputs[1]);
        let dx = convolve(gradient, weight, padding.as_ref(), true)?;
        let (n_parts, per_part) = sums::parts(batch * len);
        let n_weights = weight.elem_count();
        let mut parts = Buffer::unwritten(n_parts * n_weights, wide(x.dtype()), x.device())?;
        Launch::new(&KERNELS, "convolution_backward_weight", x)?
            .grid([kernel, n_heads, n_parts], 128)
            .reads([x, gradient])?
            .read_if(padding.as_ref())?
            .write(&mut parts)?
            .sizes([batch * len, per_part])
            .plain(sizes)
            .run()?;
        let dweight = sums::add_parts(x, &parts, 0, n_parts, n_weights)?;
        Ok(vec![Some(dx.tensor(x.shape())?), Some(dweight.tensor(weight.shape())?)])
    })
}
