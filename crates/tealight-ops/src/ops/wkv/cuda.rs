//! Kernels with one thread per channel of each example, which scans the positions.

use candle_core::{Result, Tensor};

use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::sums::add_parts;
use crate::backend::cuda::{Buffer, Launch, Source, wide};
use crate::ops::tokens::Tokens;

const KERNELS: Source =
    Source::new("wkv", &[include_str!("../online_softmax.cuh"), include_str!("kernel.cu")]);

pub(super) fn wkv(operands: [&Tensor; 4], tokens: Tokens<'_>) -> Result<Tensor> {
    let [key, value, decay, bonus] = operands.map(Tensor::contiguous);
    let (key, value, decay, bonus) = (key?, value?, decay?, bonus?);
    let padding = tokens.key_padding_mask.map(Tensor::contiguous).transpose()?;
    let segments = tokens.segments.map(Tensor::contiguous).transpose()?;
    let (batch, len, d_model) = key.dims3()?;
    let mut output = Buffer::like(&key)?;
    Launch::new(&KERNELS, "wkv_forward", &key)?
        .over(batch * d_model)
        .reads([&key, &value, &decay, &bonus])?
        .read_if(padding.as_ref())?
        .read_if(segments.as_ref())?
        .write(&mut output)?
        .sizes([batch * d_model, len, d_model])
        .run()?;
    let (inputs, output) = ([&key, &value, &decay, &bonus], output.value(key.shape()));
    record_saving("wkv", &inputs, output, Saved::Inputs, move |inputs, _, gradient| {
        let [key, value, decay, bonus] = [0, 1, 2, 3].map(|i| &inputs[i]);
        let wides = |n| Buffer::unwritten(n, wide(key.dtype()), key.device());
        let n = key.elem_count();
        let (mut shifts, mut scales, mut outputs) = (wides(n)?, wides(n)?, wides(n)?);
        let mut drates = wides(batch * 2 * d_model)?;
        let (mut dkey, mut dvalue) = (Buffer::like(key)?, Buffer::like(key)?);
        Launch::new(&KERNELS, "wkv_backward", key)?
            .over(batch * d_model)
            .reads([key, value, decay, bonus])?
            .read_if(padding.as_ref())?
            .read_if(segments.as_ref())?
            .read(gradient)?
            .writes([&mut shifts, &mut scales, &mut outputs])?
            .writes([&mut dkey, &mut dvalue, &mut drates])?
            .sizes([batch * d_model, len, d_model])
            .run()?;
        let drates = add_parts(key, &drates, 0, batch, 2 * d_model)?.tensor((2, d_model))?;
        let (dkey, dvalue) = (dkey.tensor(key.shape())?, dvalue.tensor(key.shape())?);
        Ok([dkey, dvalue, drates.get(0)?, drates.get(1)?].map(Some).into())
    })
}
