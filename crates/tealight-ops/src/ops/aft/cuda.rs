//! Kernels with one thread per channel of each position, which loops over the other positions.
//!
//! Cost: O(len² · d_model) time, O(len · d_model) memory; O(len · d_model) of both for AFT-simple.

use candle_core::{Result, Tensor};

use super::{Alignment, Reach};
use crate::autograd::graph::{Operation, record};
use crate::backend::cuda::{Buffer, Launch, Plain, Source, int, wide};

const KERNELS: Source =
    Source::new("aft", &[include_str!("../online_softmax.cuh"), include_str!("kernel.cu")]);

/// `Aft` in `kernel.cu`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Problem {
    q_len: i32,
    kv_len: i32,
    n_maps: i32,
    width: i32,
    taps: i32,
    n_taps: i32,
    origin: i32,
    past: i32,
}

#[expect(unsafe_code, reason = "`Plain` is an unsafe trait")]
// SAFETY: the kernels' struct has these fields, in this order.
unsafe impl Plain for Problem {}

/// What the weights w are indexed by.
#[derive(Clone, Copy, Debug)]
pub(super) enum Taps {
    None,
    Pairs,
    OfPositions,
    OfMaps(Alignment),
}

/// `key (batch, kv_len, n_maps)`, `value (batch, kv_len, n_maps, ..)`, weights as `taps` says, for `q_len`
/// positions → `(batch, q_len, n_maps, ..)`
pub(super) fn aft(
    [key, value]: [&Tensor; 2],
    w: Option<&Tensor>,
    taps: Taps,
    q_len: usize,
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    let (key, value) = (key.contiguous()?, value.contiguous()?);
    let [w, padding] = [w, key_padding_mask].map(|x| x.map(Tensor::contiguous).transpose());
    let (w, padding) = (w?, padding?);
    let (batch, kv_len, n_maps) = key.dims3()?;
    let width = value.elem_count() / key.elem_count();
    let n_taps = w.as_ref().map_or(Ok(1), |w| w.dim(1))?;
    let (taps, origin) = match taps {
        Taps::None => (0, 0),
        Taps::Pairs => (1, 0),
        Taps::OfPositions => (2, n_taps / 2),
        Taps::OfMaps(alignment) => (3, alignment.origin(n_taps)),
    };
    let problem = Problem {
        q_len: int(q_len)?,
        kv_len: int(kv_len)?,
        n_maps: int(n_maps)?,
        width: int(width)?,
        taps,
        n_taps: int(n_taps)?,
        origin: int(origin)?,
        past: (reach == Reach::Past).into(),
    };
    let n = batch * q_len * n_maps * width;
    let mut output = Buffer::unwritten(n, value.dtype(), value.device())?;
    let row = || Buffer::unwritten(batch * q_len * n_maps, wide(key.dtype()), key.device());
    let (mut maxima, mut sums) = (row()?, row()?);
    let is_scan = taps == 0 && reach == Reach::Past;
    if is_scan {
        Launch::new(&KERNELS, "aft_scan_forward", &key)?
            .over(batch * n_maps)
            .reads([&key, &value])?
            .read_if(padding.as_ref())?
            .writes([&mut output, &mut maxima, &mut sums])?
            .sizes([batch * n_maps, kv_len, n_maps])
            .run()?;
    } else {
        Launch::new(&KERNELS, "aft_forward", &key)?
            .over(n)
            .reads([&key, &value])?
            .read_if(w.as_ref())?
            .read_if(padding.as_ref())?
            .writes([&mut output, &mut maxima, &mut sums])?
            .size(n)
            .plain(problem)
            .run()?;
    }
    let mut shape = value.dims().to_vec();
    shape[1] = q_len;
    let operation = Aft { padding, problem, maxima, sums, is_scan };
    let inputs: Vec<_> = [Some(&key), Some(&value), w.as_ref()].into_iter().flatten().collect();
    record(operation, &inputs, output.value(shape))
}

struct Aft {
    padding: Option<Tensor>,
    problem: Problem,
    maxima: Buffer,
    sums: Buffer,
    is_scan: bool,
}

impl Operation for Aft {
    fn name(&self) -> &'static str {
        "aft"
    }

    fn backward(
        self: Box<Self>,
        inputs: &[Tensor],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let gradient = gradient.contiguous()?;
        let pass = Pass { aft: &self, inputs, output, gradient: &gradient };
        if self.is_scan {
            return pass.scan();
        }
        let mut gradients = pass.of_keys_and_values()?;
        if let Some(w) = inputs.get(2) {
            gradients.push(w.track_op().then(|| pass.of_weights(w)).transpose()?);
        }
        Ok(gradients)
    }
}

/// The operands of a backward pass.
struct Pass<'a> {
    aft: &'a Aft,
    inputs: &'a [Tensor],
    output: &'a Tensor,
    gradient: &'a Tensor,
}

impl<'a> Pass<'a> {
    fn scan(&self) -> Result<Vec<Option<Tensor>>> {
        let (key, value) = (&self.inputs[0], &self.inputs[1]);
        let (batch, len, d_model) = key.dims3()?;
        let (mut dkey, mut dvalue) = (Buffer::like(key)?, Buffer::like(value)?);
        Launch::new(&KERNELS, "aft_scan_backward", key)?
            .over(batch * d_model)
            .reads([key, value])?
            .read_if(self.aft.padding.as_ref())?
            .read(self.output)?
            .read_buffers([&self.aft.maxima, &self.aft.sums])?
            .read(self.gradient)?
            .writes([&mut dkey, &mut dvalue])?
            .sizes([batch * d_model, len, d_model])
            .run()?;
        Ok(vec![Some(dkey.tensor(key.shape())?), Some(dvalue.tensor(value.shape())?)])
    }

    fn of_keys_and_values(&self) -> Result<Vec<Option<Tensor>>> {
        let (key, value) = (&self.inputs[0], &self.inputs[1]);
        let n = value.elem_count();
        let mut parts = Buffer::unwritten(n, wide(key.dtype()), key.device())?;
        let (mut dkey, mut dvalue) = (Buffer::like(key)?, Buffer::like(value)?);
        self.launch("aft_backward")?
            .over(n)
            .writes([&mut parts, &mut dvalue])?
            .size(n)
            .plain(self.aft.problem)
            .run()?;
        Launch::new(&KERNELS, "add_channels", key)?
            .over(key.elem_count())
            .read_buffer(&parts)?
            .write(&mut dkey)?
            .size(key.elem_count())
            .int(self.aft.problem.width)
            .run()?;
        Ok(vec![Some(dkey.tensor(key.shape())?), Some(dvalue.tensor(value.shape())?)])
    }

    fn of_weights(&self, w: &Tensor) -> Result<Tensor> {
        let mut dw = Buffer::like(w)?;
        self.launch("aft_backward_weights")?
            .grid([w.elem_count(), 1, 1], 128)
            .write(&mut dw)?
            .int(int(self.inputs[0].dim(0)?)?)
            .plain(self.aft.problem)
            .run()?;
        dw.tensor(w.shape())
    }

    /// A kernel with the operands that both kernels read.
    fn launch(&self, kernel: &'static str) -> Result<Launch<'a>> {
        let key = &self.inputs[0];
        Launch::new(&KERNELS, kernel, key)?
            .reads([key, &self.inputs[1]])?
            .read_if(self.inputs.get(2))?
            .read_if(self.aft.padding.as_ref())?
            .read(self.output)?
            .read_buffers([&self.aft.maxima, &self.aft.sums])?
            .read(self.gradient)
    }
}
