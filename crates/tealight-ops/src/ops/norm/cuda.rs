//! Kernels with one warp per row; the gradients of weight and bias are sums over rows.

use candle_core::{D, Result, Tensor};

use super::NAME;
use super::cpu::Centre;
use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::{Buffer, Launch, Source, sums, wide};

const KERNELS: Source = Source::new("norm", &[include_str!("kernel.cu")]);

pub(super) fn normalise(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    centre: Centre,
    eps: f64,
) -> Result<Tensor> {
    let (x, weight) = (x.contiguous()?, weight.contiguous()?);
    let bias = bias.map(Tensor::contiguous).transpose()?;
    let width = x.dim(D::Minus1)?;
    let n_rows = x.elem_count() / width;
    let of_rows = || Buffer::unwritten(n_rows, wide(x.dtype()), x.device());
    let (mut y, mut means, mut scales) = (Buffer::like(&x)?, of_rows()?, of_rows()?);
    let is_centred = matches!(centre, Centre::Mean);
    Launch::new(&KERNELS, "norm_forward", &x)?
        .warps(n_rows)
        .reads([&x, &weight])?
        .read_if(bias.as_ref())?
        .writes([&mut y, &mut means, &mut scales])?
        .sizes([n_rows, width])
        .number(eps)
        .int(is_centred.into())
        .run()?;
    let inputs: Vec<_> = [Some(&x), Some(&weight), bias.as_ref()].into_iter().flatten().collect();
    record_saving(NAME, &inputs, y.value(x.shape()), Saved::Inputs, move |inputs, _, gradient| {
        let (x, weight) = (&inputs[0], &inputs[1]);
        let mut dx = Buffer::like(x)?;
        Launch::new(&KERNELS, "norm_backward_x", x)?
            .warps(n_rows)
            .reads([x, weight, gradient])?
            .read_buffers([&means, &scales])?
            .write(&mut dx)?
            .sizes([n_rows, width])
            .int(is_centred.into())
            .run()?;
        let (n_parts, per_part) = sums::parts(n_rows);
        let mut parts = Buffer::unwritten(2 * n_parts * width, wide(x.dtype()), x.device())?;
        Launch::new(&KERNELS, "norm_backward_parameters", x)?
            .grid([width.div_ceil(128), n_parts, 1], 128)
            .reads([x, gradient])?
            .read_buffers([&means, &scales])?
            .write(&mut parts)?
            .sizes([n_rows, width, per_part])
            .run()?;
        let of_parameter = |i: usize| {
            let first = i * n_parts * width;
            sums::add_parts(x, &parts, first, n_parts, width)?.tensor(width)
        };
        let mut gradients = vec![Some(dx.tensor(x.shape())?), Some(of_parameter(0)?)];
        if inputs.len() == 3 {
            gradients.push(Some(of_parameter(1)?));
        }
        Ok(gradients)
    })
}
