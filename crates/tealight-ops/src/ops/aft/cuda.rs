//! Kernels with one thread per channel of each position, which loops over the other positions.
//!
//! Cost: O(len² · d_model) time, O(len · d_model) memory; O(len · d_model) of both for AFT-simple.

use candle_core::{Result, Tensor};

use super::Weights;
use crate::autograd::graph::{Saved, record_saving};
use crate::backend::cuda::{Buffer, Launch, Source, int, ints, wide};
use crate::ops::reach::Reach;

const KERNELS: Source =
    Source::new("aft", &[include_str!("../online_softmax.cuh"), include_str!("kernel.cu")]);

/// `key (batch, kv_len, n_maps)`, `value (batch, kv_len, n_maps, ..)` → `(batch, q_len, n_maps, ..)`
pub(super) fn aft(
    key: &Tensor,
    value: &Tensor,
    weights: Weights<'_>,
    key_padding_mask: Option<&Tensor>,
    reach: Reach,
) -> Result<Tensor> {
    let (key, value) = (key.contiguous()?, value.contiguous()?);
    let (batch, kv_len, n_maps) = key.dims3()?;
    let past = reach == Reach::Past;
    let KernelWeights { w, q_len, taps, n_taps, origin } =
        KernelWeights::from_weights(weights, kv_len, reach)?;
    let [w, padding] = [w, key_padding_mask].map(|x| x.map(Tensor::contiguous).transpose());
    let (w, padding) = (w?, padding?);
    let width = value.elem_count() / key.elem_count();
    // `Aft` in `kernel.cu`.
    let problem = ints([q_len, kv_len, n_maps, width, taps as usize, n_taps, origin, past.into()])?;
    let n = batch * q_len * n_maps * width;
    let mut output = Buffer::unwritten(n, value.dtype(), value.device())?;
    let row = || Buffer::unwritten(batch * q_len * n_maps, wide(key.dtype()), key.device());
    let (mut maxima, mut sums) = (row()?, row()?);
    let is_scan = taps == Taps::None && past;
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
    let forward = Forward { padding, problem, maxima, sums };
    let inputs: Vec<_> = [Some(&key), Some(&value), w.as_ref()].into_iter().flatten().collect();
    let (output, saved) = (output.value(shape), Saved::InputsAndOutput);
    record_saving("aft", &inputs, output, saved, move |inputs, output, gradient| {
        if is_scan {
            return forward.backward_of_scan(inputs, output, gradient);
        }
        forward.backward(inputs, output, gradient)
    })
}

/// `Taps` in `kernel.cu`: the layout of w.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taps {
    /// `NO_TAPS`
    None = 0,
    /// `OF_PAIRS`
    OfPairs = 1,
    /// `OF_POSITIONS`
    OfPositions = 2,
    /// `OF_MAPS`
    OfMaps = 3,
}

/// The weights as the kernels read them. `taps`, `n_taps` and `origin` are fields of `Aft` in `kernel.cu`.
struct KernelWeights<'a> {
    w: Option<&'a Tensor>,
    q_len: usize,
    taps: Taps,
    n_taps: usize,
    origin: usize,
}

impl<'a> KernelWeights<'a> {
    fn from_weights(weights: Weights<'a>, kv_len: usize, reach: Reach) -> Result<Self> {
        let (w, q_len, taps, n_taps, origin) = match weights {
            Weights::None => {
                let q_len = if reach == Reach::Past { kv_len } else { 1 };
                (None, q_len, Taps::None, 1, 0)
            }
            Weights::OfPairs(w) => {
                let (q_len, n_taps) = w.dims2()?;
                (Some(w), q_len, Taps::OfPairs, n_taps, 0)
            }
            Weights::OfPositions(w) => {
                let (_len, n_taps) = w.dims2()?;
                (Some(w), kv_len, Taps::OfPositions, n_taps, n_taps / 2)
            }
            Weights::OfHeads(w, alignment) => {
                let (_n_heads, n_taps) = w.dims2()?;
                (Some(w), kv_len, Taps::OfMaps, n_taps, alignment.origin(n_taps))
            }
        };
        Ok(Self { w, q_len, taps, n_taps, origin })
    }
}

/// The data that the backward reads besides the inputs and the output.
struct Forward {
    padding: Option<Tensor>,
    problem: [i32; 8],
    maxima: Buffer,
    sums: Buffer,
}

impl Forward {
    fn backward_of_scan(
        &self,
        inputs: &[Tensor],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (key, value) = (&inputs[0], &inputs[1]);
        let (batch, len, d_model) = key.dims3()?;
        let (mut dkey, mut dvalue) = (Buffer::like(key)?, Buffer::like(value)?);
        Launch::new(&KERNELS, "aft_scan_backward", key)?
            .over(batch * d_model)
            .reads([key, value])?
            .read_if(self.padding.as_ref())?
            .read(output)?
            .read_buffers([&self.maxima, &self.sums])?
            .read(gradient)?
            .writes([&mut dkey, &mut dvalue])?
            .sizes([batch * d_model, len, d_model])
            .run()?;
        Ok(vec![Some(dkey.tensor(key.shape())?), Some(dvalue.tensor(value.shape())?)])
    }

    fn backward(
        &self,
        inputs: &[Tensor],
        output: &Tensor,
        gradient: &Tensor,
    ) -> Result<Vec<Option<Tensor>>> {
        let (key, value, w) = (&inputs[0], &inputs[1], inputs.get(2));
        // A kernel with the operands that both kernels read.
        let launch = |kernel| {
            Launch::new(&KERNELS, kernel, key)?
                .reads([key, value])?
                .read_if(w)?
                .read_if(self.padding.as_ref())?
                .read(output)?
                .read_buffers([&self.maxima, &self.sums])?
                .read(gradient)
        };
        let n = value.elem_count();
        let mut parts = Buffer::unwritten(n, wide(key.dtype()), key.device())?;
        let (mut dkey, mut dvalue) = (Buffer::like(key)?, Buffer::like(value)?);
        launch("aft_backward")?
            .over(n)
            .writes([&mut parts, &mut dvalue])?
            .size(n)
            .plain(self.problem)
            .run()?;
        Launch::new(&KERNELS, "add_channels", key)?
            .over(key.elem_count())
            .read_buffer(&parts)?
            .write(&mut dkey)?
            .size(key.elem_count())
            .int(int(n / key.elem_count())?)
            .run()?;
        let mut gradients =
            vec![Some(dkey.tensor(key.shape())?), Some(dvalue.tensor(value.shape())?)];
        if let Some(w) = w.filter(|w| w.track_op()) {
            let (batch, _, _) = key.dims3()?;
            let mut dw = Buffer::like(w)?;
            launch("aft_backward_weights")?
                .grid([w.elem_count(), 1, 1], 128)
                .write(&mut dw)?
                .int(int(batch)?)
                .plain(self.problem)
                .run()?;
            gradients.push(Some(dw.tensor(w.shape())?));
        } else if w.is_some() {
            gradients.push(None);
        }
        Ok(gradients)
    }
}
