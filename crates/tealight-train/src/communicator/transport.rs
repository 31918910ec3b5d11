//! How tensors travel between ranks: through the memory of the host, or from GPU to GPU.
//!
//! A transport moves numbers as a [`Communicator`](super::Communicator) moves bytes. [`sum_in_order`] computes the
//! sums, whatever moves the numbers, so no transport changes a bit.

use std::fmt;
use std::ops::Range;

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use tealight_ops::gradients::{sum_in_order, sum_in_order_into};
use tealight_ops::unwritten_f32;

use super::range_of;
use super::ranks::Ranks;
use super::wire::Wire;
use crate::error::Result;

tealight_model::names! {
    /// How gradients travel between ranks.
    pub enum TransportKind {
        /// Through the memory of the host, by MPI.
        "host" => Host,
        /// From GPU to GPU, by NCCL.
        "nccl" => Nccl,
    }
}

/// Moves tensors of one dimension, in f32, between ranks. All functions but [`device`](Self::device) are collective.
pub trait Transport: fmt::Debug + Send + Sync {
    /// Where the tensors are.
    fn device(&self) -> &Device;

    /// Sends a part of `send`, contiguous, to each rank, as `wire` says; parts may overlap. Returns the numbers that rank
    /// 0, 1, … sent to this rank, one rank after the other, `receive_lens` numbers each. See
    /// [`Communicator::exchange`](super::Communicator::exchange).
    ///
    /// # Errors
    /// If communication fails.
    fn exchange(
        &self,
        wire: Wire,
        send: &Tensor,
        send_parts: &[Range<usize>],
        receive_lens: &[usize],
    ) -> Result<Tensor>;

    /// Sends `send`, contiguous, to all ranks, as `wire` says. Returns the numbers that rank 0, 1, … sent, `lens`
    /// numbers each. The default is an [`exchange`](Self::exchange) in which the part of each rank is the whole.
    ///
    /// # Errors
    /// As [`Self::exchange`].
    fn gather(&self, wire: Wire, send: &Tensor, lens: &[usize]) -> Result<Tensor> {
        self.exchange(wire, send, &vec![0..send.elem_count(); lens.len()], lens)
    }

    /// [`Self::gather`] of each rank's [`sum_in_order`] of its `terms`. A rank without terms sends nothing.
    ///
    /// # Errors
    /// As [`Self::exchange`].
    fn gather_sums(
        &self,
        wire: Wire,
        terms: &[&Tensor],
        additions: &[usize],
        lens: &[usize],
    ) -> Result<Tensor> {
        self.gather(wire, &sum(terms, additions)?, lens)
    }
}

/// Tensors on the CPU, moved by the ranks' communicator.
#[derive(Debug)]
pub struct ThroughHost {
    ranks: Ranks,
}

impl ThroughHost {
    /// Between `ranks`.
    pub fn new(ranks: Ranks) -> Self {
        Self { ranks }
    }
}

impl Transport for ThroughHost {
    fn device(&self) -> &Device {
        &Device::Cpu
    }

    fn exchange(
        &self,
        wire: Wire,
        send: &Tensor,
        send_parts: &[Range<usize>],
        receive_lens: &[usize],
    ) -> Result<Tensor> {
        let ranks = &self.ranks;
        of_numbers(with_numbers(send, |send| wire.exchange(ranks, send, send_parts, receive_lens))?)
    }

    fn gather(&self, wire: Wire, send: &Tensor, lens: &[usize]) -> Result<Tensor> {
        of_numbers(with_numbers(send, |send| wire.gather(&self.ranks, send, lens))?)
    }

    /// In f32 the sum is written to its place among the sums of the other ranks, which saves a copy.
    fn gather_sums(
        &self,
        wire: Wire,
        terms: &[&Tensor],
        additions: &[usize],
        lens: &[usize],
    ) -> Result<Tensor> {
        if wire != Wire::F32 {
            return self.gather(wire, &sum(terms, additions)?, lens);
        }
        let mut numbers = unwritten_f32(lens.iter().sum());
        if !terms.is_empty() {
            sum_in_order_into(&mut numbers[range_of(self.ranks.rank(), lens)], terms, additions)?;
        }
        self.ranks.gather_in_place(bytemuck::cast_slice_mut(&mut numbers), &wire.bytes(lens))?;
        of_numbers(numbers)
    }
}

/// The elements of a tensor in f32, contiguous.
pub(crate) fn row(tensor: &Tensor, device: &Device) -> Result<Tensor> {
    let tensor = tensor.to_device(device)?.to_dtype(DType::F32)?.contiguous()?;
    Ok(tensor.flatten_all()?)
}

/// [`sum_in_order`]; without terms, a row without elements.
pub(crate) fn sum(terms: &[&Tensor], additions: &[usize]) -> Result<Tensor> {
    if terms.is_empty() { joined(&[]) } else { Ok(sum_in_order(terms, additions)?) }
}

/// The rows, one after the other. A tensor without elements is on the CPU.
pub(crate) fn joined(rows: &[Tensor]) -> Result<Tensor> {
    match rows {
        [] => Ok(Tensor::zeros(0, DType::F32, &Device::Cpu)?),
        [row] => Ok(row.clone()),
        rows => Ok(Tensor::cat(rows, 0)?),
    }
}

fn of_numbers(numbers: Vec<f32>) -> Result<Tensor> {
    let len = numbers.len();
    Ok(Tensor::from_vec(numbers, len, &Device::Cpu)?)
}

/// Calls `f` with the numbers of a contiguous tensor on the CPU.
fn with_numbers<R>(tensor: &Tensor, f: impl FnOnce(&[f32]) -> R) -> R {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(CpuStorage::F32(numbers)) = &*storage else {
        unreachable!("invariant: the tensors of a transport are on its device, in f32")
    };
    f(&numbers[layout.start_offset()..][..tensor.elem_count()])
}
