//! Where the elements of a storage are, for a kernel.

#[cfg(feature = "cuda")]
use candle_core::cuda_backend::CudaStorageSlice;
#[cfg(feature = "cuda")]
use candle_core::cuda_backend::cudarc::driver::DevicePtr;
use candle_core::{CpuStorage, DType, Result, Storage, bail};

/// The first byte of all that is stored.
pub(super) fn of(storage: &Storage) -> Result<u64> {
    match storage {
        Storage::Cpu(storage) => of_cpu(storage),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => of_cuda(storage),
        _ => bail!("kernels have no access to this device"),
    }
}

fn of_cpu(storage: &CpuStorage) -> Result<u64> {
    let address = match storage {
        CpuStorage::U8(x) => x.as_ptr().addr(),
        CpuStorage::U32(x) => x.as_ptr().addr(),
        CpuStorage::I64(x) => x.as_ptr().addr(),
        CpuStorage::BF16(x) => x.as_ptr().addr(),
        CpuStorage::F32(x) => x.as_ptr().addr(),
        CpuStorage::F64(x) => x.as_ptr().addr(),
        _ => bail!("kernels do not read this dtype"),
    };
    Ok(address as u64)
}

#[cfg(feature = "cuda")]
fn of_cuda(storage: &candle_core::CudaStorage) -> Result<u64> {
    let stream = storage.device.cuda_stream();
    // There is one queue, and what is given to it runs in order: no event has to be waited for.
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

/// Bytes of an element.
pub(super) fn size_of(dtype: DType) -> u64 {
    dtype.size_in_bytes() as u64
}
