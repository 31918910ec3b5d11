//! Kernels with one block per head of each example, which scans the positions.

use candle_core::{Result, Tensor};

use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::{Buffer, Launch, Source, ints, shared_bytes, wide};
use crate::ops::heads::Sizes;
use crate::ops::reach::Reach;

const KERNELS: Source = Source::new("linear_attention", &[include_str!("kernel.cu")]);
const THREADS: usize = 256;

/// Bytes of shared memory for the state of a head and scratch, for operands of the dtype of `x`.
fn bytes(sizes: &Sizes, x: &Tensor) -> usize {
    let Sizes { n_features, width, .. } = *sizes;
    (4 * n_features + n_features * width + width + THREADS) * wide(x.dtype()).size_in_bytes()
}

/// Whether the state of a head fits in shared memory.
pub(super) fn takes(sizes: &Sizes, x: &Tensor) -> bool {
    bytes(sizes, x) <= shared_bytes(x.device())
}

pub(super) fn linear_attention(
    sizes: Sizes,
    reach: Reach,
    operands: [&Tensor; 3],
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let Sizes { batch, n_heads, q_len, kv_len, n_features, width } = sizes;
    let [query, key, value] = operands.map(Tensor::contiguous);
    let (query, key, value) = (query?, key?, value?);
    let inputs = [&query, &key, &value];
    let padding = key_padding_mask.map(Tensor::contiguous).transpose()?;
    // `Sizes` in `kernel.cu`.
    let past = (reach == Reach::Past).into();
    let problem = ints([n_heads, q_len, kv_len, n_features, width, past])?;
    let n = batch * n_heads * q_len * width;
    let mut output = Buffer::unwritten(n, value.dtype(), value.device())?;
    launch(&sizes, "linear_attention_forward", inputs, padding.as_ref())?
        .write(&mut output)?
        .plain(problem)
        .run()?;
    let output = output.value((batch, n_heads, q_len, width));
    record_saving("linear-attention", &inputs, output, Saved::Inputs, move |inputs, _, gradient| {
        let operands @ [query, key, value] = [0, 1, 2].map(|i| &inputs[i]);
        let of_queries =
            || Buffer::unwritten(batch * n_heads * q_len, wide(query.dtype()), query.device());
        let (mut shifts, mut scales, mut means) = (of_queries()?, of_queries()?, of_queries()?);
        let (mut dquery, mut dkey, mut dvalue) =
            (Buffer::like(query)?, Buffer::like(key)?, Buffer::like(value)?);
        launch(&sizes, "linear_attention_backward_query", operands, padding.as_ref())?
            .read(gradient)?
            .writes([&mut dquery, &mut shifts, &mut scales, &mut means])?
            .plain(problem)
            .run()?;
        launch(&sizes, "linear_attention_backward_key", operands, padding.as_ref())?
            .read(gradient)?
            .read_buffers([&shifts, &scales, &means])?
            .writes([&mut dkey, &mut dvalue])?
            .plain(problem)
            .run()?;
        let gradients = [dquery, dkey, dvalue].into_iter().zip(inputs);
        gradients.map(|(gradient, input)| gradient.tensor(input.shape()).map(Some)).collect()
    })
}

/// A kernel with one block per head, and the operands that all kernels read.
fn launch<'a>(
    sizes: &Sizes,
    kernel: &'static str,
    operands: [&'a Tensor; 3],
    padding: Option<&'a Tensor>,
) -> Result<Launch<'a>> {
    Launch::new(&KERNELS, kernel, operands[0])?
        .grid([sizes.batch * sizes.n_heads, 1, 1], THREADS)
        .shared(bytes(sizes, operands[0]))
        .reads(operands)?
        .read_if(padding)
}
