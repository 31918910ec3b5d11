//! The addresses of elements, for kernels.

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::CudaStorageSlice;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::{CpuStorage, Result, Storage, StorageRef, Tensor, bail};

/// The address of the first element of a storage, whatever part of it a tensor views.
pub(super) fn first_element(storage: &Storage) -> Result<u64> {
    match storage {
        Storage::Cpu(storage) => of_cpu(storage),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => of_cuda(storage),
        _ => bail!("kernels have no access to this device"),
    }
}

fn of_cpu(storage: &CpuStorage) -> Result<u64> {
    let address = match storage {
        CpuStorage::U8(x) => x.as_ptr().expose_provenance(),
        CpuStorage::U32(x) => x.as_ptr().expose_provenance(),
        CpuStorage::I64(x) => x.as_ptr().expose_provenance(),
        CpuStorage::BF16(x) => x.as_ptr().expose_provenance(),
        CpuStorage::F32(x) => x.as_ptr().expose_provenance(),
        CpuStorage::F64(x) => x.as_ptr().expose_provenance(),
        _ => bail!("kernels do not read this dtype"),
    };
    Ok(address as u64)
}

#[cfg(feature = "cuda")]
fn of_cuda(storage: &candle_core::CudaStorage) -> Result<u64> {
    let stream = storage.device.cuda_stream();
    // All work runs in order on one stream, so no event has to be waited for (see `device::open_cuda`).
    let address = match &storage.slice {
        CudaStorageSlice::U8(x) => x.device_ptr(&stream).0,
        CudaStorageSlice::U32(x) => x.device_ptr(&stream).0,
        CudaStorageSlice::I64(x) => x.device_ptr(&stream).0,
        CudaStorageSlice::BF16(x) => x.device_ptr(&stream).0,
        CudaStorageSlice::F32(x) => x.device_ptr(&stream).0,
        CudaStorageSlice::F64(x) => x.device_ptr(&stream).0,
        _ => bail!("kernels do not read this dtype"),
    };
    Ok(address)
}

/// The address of the first element of a tensor, and the lock on its storage.
pub(super) fn of_tensor(x: &Tensor) -> Result<(u64, StorageRef<'_>)> {
    let (storage, layout) = x.storage_and_layout();
    let start = layout.start_offset() * x.dtype().size_in_bytes();
    Ok((first_element(&storage)? + start as u64, storage))
}
