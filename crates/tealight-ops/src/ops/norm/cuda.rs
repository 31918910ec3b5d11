//! Kernels with one block per row; the gradients of weight and bias are sums over rows.

use candle_core::{D, Result, Tensor};

use super::NAME;
use super::cpu::Centre;
use crate::autograd::graph::{Operation, record};
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
        .rows(n_rows, width)
        .reads([&x, &weight])?
        .read_if(bias.as_ref())?
        .writes([&mut y, &mut means, &mut scales])?
        .size(width)
        .number(eps)
        .int(is_centred.into())
        .run()?;
    let inputs: Vec<_> = [Some(&x), Some(&weight), bias.as_ref()].into_iter().flatten().collect();
    record(Norm { is_centred, means, scales }, &inputs, y.value(x.shape()))
}

struct Norm {
    is_centred: bool,
    means: Buffer,
    scales: Buffer,
}

impl Operation for Norm {
    fn name(&self) -> &'static str {
        NAME
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
        let (x, weight) = (&inputs[0], &inputs[1]);
        let gradient = gradient.contiguous()?;
        let width = x.dim(D::Minus1)?;
        let n_rows = x.elem_count() / width;
        let mut dx = Buffer::like(x)?;
        Launch::new(&KERNELS, "norm_backward_x", x)?
            .rows(n_rows, width)
            .reads([x, weight, &gradient])?
            .read_buffers([&self.means, &self.scales])?
            .write(&mut dx)?
            .size(width)
            .int(self.is_centred.into())
            .run()?;
        let (n_parts, per_part) = sums::parts(n_rows);
        let mut parts = Buffer::unwritten(2 * n_parts * width, wide(x.dtype()), x.device())?;
        Launch::new(&KERNELS, "norm_backward_parameters", x)?
            .grid([width.div_ceil(128), n_parts, 1], 128)
            .reads([x, &gradient])?
            .read_buffers([&self.means, &self.scales])?
            .write(&mut parts)?
            .sizes([n_rows, width, per_part])
            .run()?;
        let dweight = sums::add_parts(x, &parts, 0, n_parts, width)?;
        let mut gradients = vec![Some(dx.tensor(x.shape())?), Some(dweight.tensor(width)?)];
        if inputs.len() == 3 {
            let dbias = sums::add_parts(x, &parts, n_parts * width, n_parts, width)?;
            gradients.push(Some(dbias.tensor(width)?));
        }
        Ok(gradients)
    }
}
