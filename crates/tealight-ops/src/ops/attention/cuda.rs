//! Kernels over tiles of queries and keys: `kernel.cu` and, for bf16 on tensor cores, `tensor_cores.cu`.

use bytemuck::NoUninit;
use candle_core::{DType, Result, Tensor};

use super::problem::Problem;
use super::{Layout, NAME, Options, with_rows};
use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::{
    Buffer, Key, Launch, Source, has_tensor_cores, int, long, shared_bytes, wide,
};
use crate::ops::dropout::threshold;

/// Rows of a tile of either side.
const TILE: usize = 64;
/// The widest heads: the kernels hold results of this width in registers.
const MAX_WIDTH: usize = 128;

const TILES: &str = include_str!("tiles.cuh");
const KERNELS: Source = Source::new("attention", &[TILES, include_str!("kernel.cu")]);

/// The source of the kernels on tensor cores for heads of up to `$width` channels, and their names. A source for each
/// width: a model uses one, and each takes long to compile.
macro_rules! on_tensor_cores {
    ($width:literal) => {{
        const KERNELS: Source = Source::new(
            concat!("attention_bf16_", $width),
            &[concat!("#define WIDTH ", $width), TILES, include_str!("tensor_cores.cu")],
        );
        let names = [
            concat!("attention_forward_", $width),
            concat!("attention_backward_query_", $width),
            concat!("attention_backward_key_", $width),
        ];
        (&KERNELS, names)
    }};
}

/// The kernels for a problem.
#[derive(Clone, Copy)]
struct Kernels {
    source: &'static Source,
    forward: &'static str,
    backward_query: &'static str,
    backward_key: &'static str,
    /// Threads per block.
    threads: usize,
    /// Bytes of dynamic shared memory of the forward kernel.
    forward_bytes: usize,
    /// Bytes of dynamic shared memory of each backward kernel.
    backward_bytes: usize,
}

impl Kernels {
    /// The kernels for operands of the dtype of `x`, on its device.
    fn for_operands(problem: &Problem, x: &Tensor) -> Self {
        if x.dtype() == DType::BF16 && has_tensor_cores(x.device()) {
            return Self::on_tensor_cores(problem);
        }
        let Problem { head_dim, value_dim, .. } = *problem;
        let bytes = TILE * wide(x.dtype()).size_in_bytes();
        Self {
            source: &KERNELS,
            forward: "attention_forward",
            backward_query: "attention_backward_query",
            backward_key: "attention_backward_key",
            threads: 256,
            forward_bytes: bytes * (head_dim + head_dim.max(value_dim) + TILE + 3),
            backward_bytes: bytes * (2 * head_dim + 2 * value_dim + TILE + 5),
        }
    }

    /// Bytes of dynamic shared memory that a device must have.
    fn shared_bytes(&self) -> usize {
        self.forward_bytes.max(self.backward_bytes)
    }

    fn on_tensor_cores(problem: &Problem) -> Self {
        let widest = problem.head_dim.max(problem.value_dim);
        // Channels, and rows of the other side that the backward loads at a time.
        let (width, others, (source, [forward, backward_query, backward_key])) = match widest {
            ..=32 => (32, 64, on_tensor_cores!("32")),
            33..=64 => (64, 32, on_tensor_cores!("64")),
            _ => (128, 32, on_tensor_cores!("128")),
        };
        let bytes = (width + 8) * DType::BF16.size_in_bytes();
        Self {
            source,
            forward,
            backward_query,
            backward_key,
            threads: 128,
            // Tiles of the other side are there twice: one is copied while the other is read.
            forward_bytes: bytes * 5 * TILE,
            backward_bytes: bytes * (2 * TILE + 4 * others) + 6 * others * size_of::<f32>(),
        }
    }
}

/// Whether the kernels take a problem: heads fit in registers and in the device's shared memory, and the additive
/// mask needs no gradient.
pub(super) fn takes(problem: &Problem, query: &Tensor, options: &Options<'_>) -> bool {
    problem.head_dim.max(problem.value_dim) <= MAX_WIDTH
        && options.attn_mask.is_none_or(|mask| !mask.track_op())
        && Kernels::for_operands(problem, query).shared_bytes() <= shared_bytes(query.device())
}

/// `Problem` in `tiles.cuh`.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Settings {
    n_heads: i32,
    n_kv_heads: i32,
    q_len: i32,
    kv_len: i32,
    head_dim: i32,
    value_dim: i32,
    causal: i32,
    threshold: u32,
    window: i64,
    scale: f64,
    key: Key,
    dropout_scale: f64,
    attn_mask_head: i64,
}

/// `Strides` in `tiles.cuh`.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
struct Strides {
    example: i64,
    head: i64,
    row: i64,
}

impl Settings {
    fn from_problem(problem: &Problem, attn_mask: Option<&Tensor>) -> Result<Self> {
        let Problem { n_heads, n_kv_heads, q_len, kv_len, head_dim, value_dim, .. } = *problem;
        let draw = problem.dropout;
        let is_by_head = attn_mask.is_some_and(|mask| mask.rank() == 3);
        Ok(Self {
            n_heads: int(n_heads)?,
            n_kv_heads: int(n_kv_heads)?,
            q_len: int(q_len)?,
            kv_len: int(kv_len)?,
            head_dim: int(head_dim)?,
            value_dim: int(value_dim)?,
            causal: problem.band.causal.into(),
            threshold: draw.map_or(0, |draw| threshold(draw.rate)),
            window: problem.band.window.map_or(Ok(0), long)?,
            scale: problem.scale,
            key: draw.map_or(Ok(Key::NONE), |draw| Key::from_stream(draw.stream))?,
            dropout_scale: draw.map_or(1., |draw| 1. / (1. - draw.rate)),
            attn_mask_head: if is_by_head { long(q_len * kv_len)? } else { 0 },
        })
    }
}

impl Problem {
    /// The strides of queries, keys, values or outputs.
    fn strides(&self, x: &Tensor) -> Result<Strides> {
        let strides = x.stride();
        let ordered = self.layout.ordered([strides[0], strides[1], strides[2], 1]);
        let [example, head, row, _] = ordered.map(long);
        Ok(Strides { example: example?, head: head?, row: row? })
    }

    /// The strides of a contiguous result with these heads, rows and channels.
    fn contiguous_strides(&self, [heads, len, width]: [usize; 3]) -> Result<Strides> {
        let (head, row) = match self.layout {
            Layout::HeadsFirst => (len * width, width),
            Layout::HeadsLast => (width, heads * width),
        };
        Ok(Strides { example: long(heads * len * width)?, head: long(head)?, row: long(row)? })
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
    let wide = wide(query.dtype());
    let in_wide = |x: Option<&Tensor>| x.map(|x| x.to_dtype(wide)?.contiguous()).transpose();
    let attn_mask = in_wide(options.attn_mask)?;
    let (sink, log_forget) = (in_wide(options.sink)?, in_wide(options.log_forget)?);
    let (padding, segments) =
        (contiguous(options.key_padding_mask)?, contiguous(options.segments)?);
    let forget = log_forget.as_ref().map(|x| cumulative(&problem, &query, x, padding.as_ref()));
    let forget = forget.transpose()?;
    let n_rows = problem.batch * problem.n_heads * problem.q_len;
    let of_rows = || Buffer::unwritten(n_rows, wide, query.device());
    let n_elements = n_rows * problem.value_dim;
    let mut output = Buffer::unwritten(n_elements, query.dtype(), query.device())?;
    let (mut maxima, mut sums) = (of_rows()?, of_rows()?);
    let kernels = Kernels::for_operands(&problem, &query);
    Launch::new(kernels.source, kernels.forward, &query)?
        .grid([problem.q_len.div_ceil(TILE), problem.n_heads, problem.batch], kernels.threads)
        .shared(kernels.forward_bytes)
        .reads([&query, &key, &value])?
        .read_if(attn_mask.as_ref())?
        .read_if(padding.as_ref())?
        .read_if(segments.as_ref())?
        .read_if(forget.as_ref())?
        .read_if(sink.as_ref())?
        .writes([&mut output, &mut maxima, &mut sums])?
        .plain(Settings::from_problem(&problem, attn_mask.as_ref())?)
        .plain(problem.strides(&query)?)
        .plain(problem.strides(&key)?)
        .plain(problem.strides(&value)?)
        .plain(problem.contiguous_strides([problem.n_heads, problem.q_len, problem.value_dim])?)
        .run()?;
    let mut inputs = vec![&query, &key, &value];
    inputs.extend(sink.iter().chain(&log_forget));
    let output = output.value(&problem.output_shape()[..]);
    let sink = sink.clone();
    let forward = Forward { problem, attn_mask, padding, segments, forget, sink, maxima, sums };
    let saved = Saved::InputsAndOutput;
    record_saving(NAME, &inputs, output, saved, move |inputs, output, gradient| {
        forward.backward(inputs, output, gradient)
    })
}

/// c of forgetting, each number with its rounding error: `(batch, n_heads, kv_len, 2)`.
fn cumulative(
    problem: &Problem,
    query: &Tensor,
    log_forget: &Tensor,
    padding: Option<&Tensor>,
) -> Result<Tensor> {
    let Problem { batch, n_heads, kv_len, .. } = *problem;
    let n_numbers = 2 * log_forget.elem_count();
    let mut c = Buffer::unwritten(n_numbers, log_forget.dtype(), log_forget.device())?;
    Launch::new(&KERNELS, "attention_forget", query)?
        .grid([n_heads, batch, 1], 256)
        .read(log_forget)?
        .read_if(padding)?
        .write(&mut c)?
        .plain(Settings::from_problem(problem, None)?)
        .run()?;
    c.tensor((batch, n_heads, kv_len, 2))
}

/// The data that the backward reads besides the operands.
struct Forward {
    problem: Problem,
    attn_mask: Option<Tensor>,
    padding: Option<Tensor>,
    segments: Option<Tensor>,
    /// c, each number with its rounding error: `(batch, n_heads, kv_len, 2)`.
    forget: Option<Tensor>,
    sink: Option<Tensor>,
    maxima: Buffer,
    sums: Buffer,
}

impl Forward {
    fn backward(
        &self,
        inputs: &[Tensor],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let Self { problem, attn_mask, padding, segments, forget, sink, maxima, sums } = self;
        let Problem { n_heads, n_kv_heads, q_len, kv_len, head_dim, value_dim, .. } = *problem;
        let [query, key, value] = [0, 1, 2].map(|i| &inputs[i]);
        let delta = self.delta(output, gradient)?;
        let settings = Settings::from_problem(problem, attn_mask.as_ref())?;
        let strides = [query, key, value, gradient].into_iter().map(|x| problem.strides(x));
        let strides = strides.collect::<Result<Vec<_>>>()?;
        let kernels = Kernels::for_operands(problem, query);
        // A kernel with one block for each tile of `len` rows of each of `heads`, and the operands that both
        // kernels read.
        let launch = |kernel, [len, heads]: [usize; 2]| {
            Launch::new(kernels.source, kernel, query)?
                .grid([len.div_ceil(TILE), heads, problem.batch], kernels.threads)
                .shared(kernels.backward_bytes)
                .reads([query, key, value])?
                .read_if(attn_mask.as_ref())?
                .read_if(padding.as_ref())?
                .read_if(segments.as_ref())?
                .read_if(forget.as_ref())?
                .read(gradient)?
                .read_buffers([maxima, sums, &delta])
        };
        let (mut dquery, mut dkey, mut dvalue) =
            (Buffer::like(query)?, Buffer::like(key)?, Buffer::like(value)?);
        let of_scores = |len| {
            let sums = |_| {
                Buffer::zeros(problem.batch * n_heads * len, wide(query.dtype()), query.device())
            };
            forget.as_ref().map(sums).transpose()
        };
        let (mut row_sums, mut column_sums) = (of_scores(q_len)?, of_scores(kv_len)?);
        launch(kernels.backward_query, [q_len, n_heads])?
            .write(&mut dquery)?
            .write_if(row_sums.as_mut())?
            .plain(settings)
            .all_plain(strides.iter().copied())
            .plain(problem.contiguous_strides([n_heads, q_len, head_dim])?)
            .run()?;
        launch(kernels.backward_key, [kv_len, n_kv_heads])?
            .writes([&mut dkey, &mut dvalue])?
            .write_if(column_sums.as_mut())?
            .plain(settings)
            .all_plain(strides)
            .plain(problem.contiguous_strides([n_kv_heads, kv_len, head_dim])?)
            .plain(problem.contiguous_strides([n_kv_heads, kv_len, value_dim])?)
            .run()?;
        let gradients = [dquery, dkey, dvalue].into_iter().zip(inputs);
        let mut gradients = gradients
            .map(|(gradient, input)| gradient.tensor(input.shape()).map(Some))
            .collect::<Result<Vec<_>>>()?;
        if let Some(sink) = sink {
            gradients.push(Some(self.sink_gradient(query, sink, &delta)?));
        }
        if let (Some(row_sums), Some(column_sums)) = (row_sums, column_sums) {
            gradients.push(Some(self.forget_gradient(query, &row_sums, &column_sums)?));
        }
        Ok(gradients)
    }

    /// dz of each sink.
    fn sink_gradient(&self, query: &Tensor, sink: &Tensor, delta: &Buffer) -> Result<Tensor> {
        let mut gradient = Buffer::like(sink)?;
        Launch::new(&KERNELS, "attention_sink_gradient", query)?
            .grid([self.problem.n_heads, 1, 1], 256)
            .read(sink)?
            .read_buffers([&self.maxima, &self.sums, delta])?
            .write(&mut gradient)?
            .int(int(self.problem.batch)?)
            .plain(Settings::from_problem(&self.problem, None)?)
            .run()?;
        gradient.tensor(sink.shape())
    }

    /// d log f of every key.
    fn forget_gradient(
        &self,
        query: &Tensor,
        row_sums: &Buffer,
        column_sums: &Buffer,
    ) -> Result<Tensor> {
        let Problem { batch, n_heads, kv_len, .. } = self.problem;
        let n_keys = batch * n_heads * kv_len;
        let mut gradient = Buffer::unwritten(n_keys, wide(query.dtype()), query.device())?;
        Launch::new(&KERNELS, "attention_forget_gradient", query)?
            .grid([n_heads, batch, 1], 256)
            .read_buffers([row_sums, column_sums])?
            .read_if(self.padding.as_ref())?
            .write(&mut gradient)?
            .plain(Settings::from_problem(&self.problem, None)?)
            .run()?;
        gradient.tensor((batch, n_heads, kv_len))
    }

    /// rowsum(dO ⊙ O)
    fn delta(&self, output: &Tensor, gradient: &Tensor) -> Result<Buffer> {
        let problem = &self.problem;
        let n_rows = problem.batch * problem.n_heads * problem.q_len;
        let mut delta = Buffer::unwritten(n_rows, wide(output.dtype()), output.device())?;
        let n_packs = (problem.value_dim * output.dtype().size_in_bytes()).div_ceil(16);
        let lanes = n_packs.next_power_of_two().min(32);
        Launch::new(&KERNELS, "attention_delta", output)?
            .grid([(problem.q_len * lanes).div_ceil(256), problem.n_heads, problem.batch], 256)
            .reads([output, gradient])?
            .write(&mut delta)?
            .plain(Settings::from_problem(problem, None)?)
            .int(int(lanes)?)
            .plain(problem.strides(output)?)
            .plain(problem.strides(gradient)?)
            .run()?;
        Ok(delta)
    }
}
