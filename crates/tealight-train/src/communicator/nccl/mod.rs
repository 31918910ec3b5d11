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
use std::ops::Range;
use std::sync::Arc;

use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::{CudaDevice, DType, Device, Storage, Tensor};
use half::bf16;
use library::{Job, Library, Transfer};

use super::range_of;
use super::ranks::Ranks;
use super::transport::Transport;
use super::wire::Wire;
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
    Ok(Arc::new(Gpus { job, gpu, device: device.clone() }))
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

impl Transport for Gpus {
    fn device(&self) -> &Device {
        &self.device
    }

    /// Each part is a message from one rank to another, and all are under way at once.
    fn exchange(
        &self,
        wire: Wire,
        send: &Tensor,
        send_parts: &[Range<usize>],
        receive_lens: &[usize],
    ) -> Result<Tensor> {
        let send = send.to_dtype(wire.dtype())?;
        let n_received: usize = receive_lens.iter().sum();
        // No memory of a GPU is empty.
        let device = if n_received == 0 { &Device::Cpu } else { &self.device };
        let receive = Tensor::zeros(n_received, send.dtype(), device)?;
        let receive_parts: Vec<_> =
            (0..receive_lens.len()).map(|rank| range_of(rank, receive_lens)).collect();
        let stream = self.gpu.cuda_stream();
        stream.context().bind_to_thread().map_err(candle_core::Error::wrap)?;
        let (sent, received) =
            (transfers(&send, send_parts)?, transfers(&receive, &receive_parts)?);
        // SAFETY: the addresses are of `send` and `receive`, on the GPU of the job. All work on this GPU is on this
        // stream, on which their memory is also freed, and nobody else has `receive` yet.
        unsafe { self.job.submit(&sent, &received, stream.cu_stream().cast()) }?;
        Ok(receive.to_dtype(DType::F32)?)
    }
}

/// The transfers between a contiguous tensor and all ranks, of which each sends or receives a part; nothing is
/// transferred of a part that is empty.
fn transfers(tensor: &Tensor, parts: &[Range<usize>]) -> Result<Vec<Transfer>> {
    if parts.iter().all(Range::is_empty) {
        return Ok(Vec::new());
    }
    let (start, width) = (address(tensor)?, tensor.dtype().size_in_bytes());
    let transfer = |(peer, part): (usize, &Range<usize>)| Transfer {
        peer,
        address: start + (part.start * width) as u64,
        n_bytes: part.len() * width,
    };
    let parts = parts.iter().enumerate().filter(|(_, part)| !part.is_empty());
    Ok(parts.map(transfer).collect())
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
