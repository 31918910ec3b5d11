//! The kernels, in tiles of queries and keys: see `attention.cu`.

use candle_core::{Result, Tensor};

use super::problem::Problem;
use super::{NAME, Options, with_rows};
use crate::dropout::threshold;
use crate::gpu::{Buffer, Launch, Plain, int, long, wide};
use crate::graph::{Operation, record};

/// Rows of a tile of either side.
const TILE: usize = 64;
/// The widest heads that the kernels have registers for.
const MAX_WIDTH: usize = 128;
const THREADS: usize = 256;

/// Whether there is a kernel for this: not for wide heads, and not for a bias that is learnt.
pub(super) fn takes(problem: &Problem, options: &Options<'_>) -> bool {
    problem.head_dim.max(problem.value_dim) <= MAX_WIDTH
        && options.bias.is_none_or(|bias| !bias.track_op())
}

/// `Problem` in `attention.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Settings {
    n_heads: i32,
    n_kv_heads: i32,
    q_len: i32,
    kv_len: i32,
    head_dim: i32,
    value_dim: i32,
    causal: i32,
    window: i64,
    scale: f64,
    key0: u32,
    key1: u32,
    threshold: u32,
    dropout_scale: f64,
    bias_head: i64,
}

/// `Strides` in `attention.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Strides {
    example: i64,
    head: i64,
    row: i64,
}

#[expect(unsafe_code, reason = "see `Plain`")]
// SAFETY: the kernels' struct has these fields, in this order.
unsafe impl Plain for Settings {}
#[expect(unsafe_code, reason = "see `Plain`")]
// SAFETY: as above.
unsafe impl Plain for Strides {}

impl Settings {
    fn of(problem: &Problem, bias: Option<&Tensor>) -> Self {
        let Problem { n_heads, n_kv_heads, q_len, kv_len, head_dim, value_dim, .. } = *problem;
        let draw = problem.dropout;
        let [key0, key1] = draw.map_or([0; 2], |draw| draw.stream.key());
        let is_by_head = bias.is_some_and(|bias| bias.rank() == 3);
        Self {
            n_heads: int(n_heads),
            n_kv_heads: int(n_kv_heads),
            q_len: int(q_len),
            kv_len: int(kv_len),
            head_dim: int(head_dim),
            value_dim: int(value_dim),
            causal: problem.band.causal().into(),
            window: problem.band.window().map_or(0, long),
            scale: problem.scale,
            key0,
            key1,
            threshold: draw.map_or(0, |draw| threshold(draw.rate)),
            dropout_scale: draw.map_or(1., |draw| 1. / (1. - draw.rate)),
            bias_head: if is_by_head { long(q_len * kv_len) } else { 0 },
        }
    }
}

impl Problem {
    /// Of a tensor of queries, keys, values or results.
    fn strides(&self, x: &Tensor) -> Strides {
        let stride = |i: usize| long(x.stride()[i]);
        let [example, head, row, _] = self.layout.ordered([stride(0), stride(1), stride(2), 1]);
        Strides { example, head, row }
    }

    fn shared_bytes(&self, of_head: usize, of_value: usize, widest: usize, bytes: usize) -> usize {
        let rows = of_head * (self.head_dim + 1) + of_value * (self.value_dim + 1);
        let widest = widest * (self.head_dim.max(self.value_dim) + 1);
        TILE * (rows + widest + TILE + 1) * bytes
    }
}

pub(super) fn attention(
    problem: Problem,
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: &Options<'_>,
) -> Result<Tensor> {
    let [query, key, value] = [with_rows(query)?, with_rows(key)?, with_rows(value)?];
    let contiguous = |x: Option<&Tensor>| x.map(Tensor::contiguous).transpose();
    let bias = options.bias.map(|bias| bias.to_dtype(query.dtype())?.contiguous()).transpose()?;
    let masks = Masks {
        bias,
        padding: contiguous(options.key_padding_mask)?,
        segments: contiguous(options.segments)?,
    };
    let n_rows = problem.batch * problem.n_heads * problem.q_len;
    let of_rows = || Buffer::unwritten(n_rows, wide(query.dtype()), query.device());
    let n_elements = n_rows * problem.value_dim;
    let mut output = Buffer::unwritten(n_elements, query.dtype(), query.device())?;
    let (mut maxima, mut sums) = (of_rows()?, of_rows()?);
    Launch::new("attention", "attention_forward", &query)?
        .grid([problem.q_len.div_ceil(TILE), problem.n_heads, problem.batch], THREADS)
        .shared(problem.shared_bytes(1, 0, 1, wide(query.dtype()).size_in_bytes()))
        .read(&query)?
        .read(&key)?
        .read(&value)?
        .read_if(masks.bias.as_ref())?
        .read_if(masks.padding.as_ref())?
        .read_if(masks.segments.as_ref())?
        .write(&mut output)?
        .write(&mut maxima)?
        .write(&mut sums)?
        .plain(Settings::of(&problem, masks.bias.as_ref()))
        .plain(problem.strides(&query))
        .plain(problem.strides(&key))
        .plain(problem.strides(&value))
        .plain(contiguous_strides(&problem, problem.n_heads, problem.q_len, problem.value_dim))
        .run()?;
    let output = output.value(&problem.output_shape()[..]);
    record(Attention { problem, masks, maxima, sums }, &[&query, &key, &value], output)
}

/// Of a result with this many heads and rows.
fn contiguous_strides(problem: &Problem, heads: usize, len: usize, width: usize) -> Strides {
    let (head, row) = match problem.layout {
        super::Layout::HeadsFirst => (len * width, width),
        super::Layout::HeadsLast => (width, heads * width),
    };
    Strides { example: long(heads * len * width), head: long(head), row: long(row) }
}

struct Masks {
    bias: Option<Tensor>,
    padding: Option<Tensor>,
    segments: Option<Tensor>,
}

struct Attention {
    problem: Problem,
    masks: Masks,
    maxima: Buffer,
    sums: Buffer,
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        NAME
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let Self { problem, masks, maxima, sums } = &*self;
        let Problem { batch, n_heads, n_kv_heads, q_len, kv_len, .. } = *problem;
        let gradient = with_rows(gradient)?;
        let (query, key, value) = (&inputs[0], &inputs[1], &inputs[2]);
        let settings = Settings::of(problem, masks.bias.as_ref());
        let n_rows = batch * n_heads * q_len;
        let mut delta = Buffer::unwritten(n_rows, wide(query.dtype()), query.device())?;
        Launch::new("attention", "attention_delta", query)?
            .over(n_rows * 32)
            .read(output)?
            .read(&gradient)?
            .write(&mut delta)?
            .plain(settings)
            .size(n_rows)
            .plain(problem.strides(output))
            .plain(problem.strides(&gradient))
            .run()?;
        let like = |x: &Tensor| Buffer::unwritten(x.elem_count(), x.dtype(), x.device());
        let (mut dquery, mut dkey, mut dvalue) = (like(query)?, like(key)?, like(value)?);
        let bytes = wide(query.dtype()).size_in_bytes();
        let launch = |kernel, grid| {
            Launch::new("attention", kernel, query)?
                .grid(grid, THREADS)
                .shared(problem.shared_bytes(2, 2, 0, bytes))
                .read(query)?
                .read(key)?
                .read(value)?
                .read_if(masks.bias.as_ref())?
                .read_if(masks.padding.as_ref())?
                .read_if(masks.segments.as_ref())?
                .read(&gradient)?
                .read_buffer(maxima)?
                .read_buffer(sums)?
                .read_buffer(&delta)
        };
        let [of_q, of_k, of_v, of_g] = [query, key, value, &gradient].map(|x| problem.strides(x));
        launch("attention_backward_query", [q_len.div_ceil(TILE), n_heads, batch])?
            .write(&mut dquery)?
            .plain(settings)
            .plain(of_q)
            .plain(of_k)
            .plain(of_v)
            .plain(of_g)
            .plain(contiguous_strides(problem, n_heads, q_len, problem.head_dim))
            .run()?;
        launch("attention_backward_key", [kv_len.div_ceil(TILE), n_kv_heads, batch])?
            .write(&mut dkey)?
            .write(&mut dvalue)?
            .plain(settings)
            .plain(of_q)
            .plain(of_k)
            .plain(of_v)
            .plain(of_g)
            .plain(contiguous_strides(problem, n_kv_heads, kv_len, problem.head_dim))
            .plain(contiguous_strides(problem, n_kv_heads, kv_len, problem.value_dim))
            .run()?;
        Ok(vec![
            Some(dquery.tensor(query.shape())?),
            Some(dkey.tensor(key.shape())?),
            Some(dvalue.tensor(value.shape())?),
        ])
    }
}
