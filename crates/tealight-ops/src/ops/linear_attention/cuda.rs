//! Kernels with one block per head of each example, which scans the positions.

use candle_core::{Result, Tensor};

use super::Reads;
use super::cpu::Sizes;
use crate::autograd::graph::{Operation, record};
use crate::backend::cuda::{Buffer, Launch, Plain, Source, int, shared_bytes, wide};

const KERNELS: Source = Source::new("linear_attention", &[include_str!("kernel.cu")]);
const THREADS: usize = 256;

/// `Sizes` in `kernel.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Problem {
    n_heads: i32,
    q_len: i32,
    kv_len: i32,
    n_features: i32,
    width: i32,
    past: i32,
}

#[expect(unsafe_code, reason = "`Plain` is an unsafe trait")]
// SAFETY: the kernels' struct has these fields, in this order.
unsafe impl Plain for Problem {}

impl Problem {
    fn of(sizes: &Sizes) -> Result<Self> {
        Ok(Self {
            n_heads: int(sizes.n_heads)?,
            q_len: int(sizes.q_len)?,
            kv_len: int(sizes.kv_len)?,
            n_features: int(sizes.n_features)?,
            width: int(sizes.width)?,
            past: (sizes.reads == Reads::Past).into(),
        })
    }
}

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
    operands: [&Tensor; 3],
    key_padding_mask: Option<&Tensor>,
) -> Result<Tensor> {
    let [query, key, value] = operands.map(Tensor::contiguous);
    let (query, key, value) = (query?, key?, value?);
    let padding = key_padding_mask.map(Tensor::contiguous).transpose()?;
    let n_blocks = sizes.batch * sizes.n_heads;
    let n = n_blocks * sizes.q_len * sizes.width;
    let mut output = Buffer::unwritten(n, value.dtype(), value.device())?;
    Launch::new(&KERNELS, "linear_attention_forward", &query)?
        .grid([n_blocks, 1, 1], THREADS)
        .shared(bytes(&sizes, &query))
        .reads([&query, &key, &value])?
        .read_if(padding.as_ref())?
        .write(&mut output)?
        .plain(Problem::of(&sizes)?)
        .run()?;
    let output = output.value((sizes.batch, sizes.n_heads, sizes.q_len, sizes.width));
    record(LinearAttention { sizes, padding }, &[&query, &key, &value], output)
}

struct LinearAttention {
    sizes: Sizes,
    padding: Option<Tensor>,
}

impl Operation for LinearAttention {
    fn name(&self) -> &'static str {
        "linear-attention"
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
        let gradient = gradient.contiguous()?;
        let query = &inputs[0];
        let n_queries = self.sizes.batch * self.sizes.n_heads * self.sizes.q_len;
        let of_queries = || Buffer::unwritten(n_queries, wide(query.dtype()), query.device());
        let (mut shifts, mut scales, mut means) = (of_queries()?, of_queries()?, of_queries()?);
        let mut gradients = Vec::with_capacity(inputs.len());
        for input in inputs {
            gradients.push(Buffer::like(input)?);
        }
        let [dquery, dkey, dvalue] = &mut gradients[..] else {
            unreachable!("invariant: there are three operands")
        };
        self.launch("linear_attention_backward_query", inputs, &gradient)?
            .writes([dquery, &mut shifts, &mut scales, &mut means])?
            .plain(Problem::of(&self.sizes)?)
            .run()?;
        self.launch("linear_attention_backward_key", inputs, &gradient)?
            .read_buffers([&shifts, &scales, &means])?
            .writes([dkey, dvalue])?
            .plain(Problem::of(&self.sizes)?)
            .run()?;
        let with_shapes = gradients.into_iter().zip(inputs);
        with_shapes.map(|(gradient, input)| gradient.tensor(input.shape()).map(Some)).collect()
    }
}

impl LinearAttention {
    /// A kernel with the operands that both kernels of the backward read.
    fn launch<'a>(
        &'a self,
        kernel: &'static str,
        inputs: &'a [Tensor],
        gradient: &'a Tensor,
    ) -> Result<Launch<'a>> {
        Launch::new(&KERNELS, kernel, &inputs[0])?
            .grid([self.sizes.batch * self.sizes.n_heads, 1, 1], THREADS)
            .shared(bytes(&self.sizes, &inputs[0]))
            .reads([&inputs[0], &inputs[1], &inputs[2]])?
            .read_if(self.padding.as_ref())?
            .read(gradient)
    }
}
