//! Tensors from GPU to GPU, by NCCL (the feature `nccl`).
//!
//! NCCL moves bytes, as MPI does: its sums depend on the number of ranks. Each rank adds on its GPU, in the order of
//! the tree. The library is opened while the program runs (`TEALIGHT_NCCL` names another one than `libnccl.so.2`). The
//! ranks' communicator carries NCCL's id of the job.
//!
//! Transfers run on the one stream of the GPU, in the order of the kernels before and after them; so memory needs no
//! further care, and nothing runs beside them on the GPU.

#![expect(unsafe_code, reason = "the library takes addresses of the GPU's memory")]

mod library;

use std::fmt;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::{CudaDevice, DType, Device, Storage, Tensor};
use half::bf16;
use library::{Job, Library, Transfer};

use super::messages::{ByMessages, Message, Messages, PointToPoint};
use super::ranks::Ranks;
use super::transport::Transport;
use crate::error::{Error, Result};

/// Joins the GPUs of all `ranks`; each rank has one of its own.
///
/// # Errors
/// On all ranks, if NCCL is not found, or `device` is no GPU; and if they cannot reach each other.
pub(crate) fn connect(ranks: &Ranks, device: &Device) -> Result<Arc<dyn Transport>> {
    let mut opened = None;
    let mut open = || {
        let Device::Cuda(device) = device else {
            let rule = "`distributed.transport` = \"nccl\" moves data between GPUs; add `--device cuda`, or set it to \"host\"";
            return Err(Error::config(["distributed.transport"], rule));
        };
        opened = Some((Library::open()?, device.clone()));
        Ok(())
    };
    ranks.agree(open())?;
    let (library, gpu) = opened.expect("invariant: all ranks have opened it");
    let id = ranks.bytes_of_first(|| Ok(library.new_id()?))?;
    let id = id.try_into().expect("invariant: all ranks have the same program");
    gpu.cuda_stream().context().bind_to_thread().map_err(candle_core::Error::wrap)?;
    let job = library.join(id, ranks.rank(), ranks.size())?;
    Ok(Arc::new(ByMessages(Gpus { job, gpu, device: device.clone() })))
}

/// This rank's GPU, and the connection to the GPUs of other ranks.
struct Gpus {
    job: Job,
    gpu: CudaDevice,
    /// The same GPU, as Candle's type.
    device: Device,
}

impl fmt::Debug for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpus").field("device", &self.device).finish_non_exhaustive()
    }
}

impl PointToPoint for Gpus {
    fn device(&self) -> &Device {
        &self.device
    }

    fn run(&self, send: &Tensor, messages: &Messages) -> Result<Tensor> {
        let Messages { sent, received, receive_len } = messages;
        // No memory of a GPU is empty.
        let device = if *receive_len == 0 { &Device::Cpu } else { &self.device };
        let receive = Tensor::zeros(*receive_len, send.dtype(), device)?;
        let stream = self.gpu.cuda_stream();
        stream.context().bind_to_thread().map_err(candle_core::Error::wrap)?;
        let (sent, received) = (transfers(send, sent)?, transfers(&receive, received)?);
        // SAFETY: the addresses are of `send` and `receive`, on the GPU of the job. All work on this GPU is on this
        // stream, on which their memory is also freed, and nobody else has `receive` yet.
        unsafe { self.job.submit(&sent, &received, stream.cu_stream().cast()) }?;
        Ok(receive)
    }
}

/// The messages to or from parts of a contiguous tensor.
fn transfers(tensor: &Tensor, messages: &[Message]) -> Result<Vec<Transfer>> {
    if messages.is_empty() {
        return Ok(Vec::new());
    }
    let (start, width) = (address(tensor)?, tensor.dtype().size_in_bytes());
    let transfer = |Message { peer, range }: &Message| Transfer {
        peer: *peer,
        address: start + (range.start * width) as u64,
        n_bytes: range.len() * width,
    };
    Ok(messages.iter().map(transfer).collect())
}

/// The address of a tensor's first element on its GPU.
fn address(tensor: &Tensor) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        unreachable!("invariant: the tensors of a transport are on its device")
    };
    let stream = storage.device.cuda_stream();
    let first = match tensor.dtype() {
        DType::BF16 => storage.as_cuda_slice::<bf16>()?.device_ptr(&stream).0,
        _ => storage.as_cuda_slice::<f32>()?.device_ptr(&stream).0,
    };
    Ok(first + (layout.start_offset() * tensor.dtype().size_in_bytes()) as u64)
}
