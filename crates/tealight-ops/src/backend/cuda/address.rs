//! Where the elements of a storage are, for a kernel.

use candle_core::{CpuStorage, DType, Result, Storage, bail};

/// The first byte of all that is stored.
pub(super) fn of(storage: &Storage) -> Result<u64> {
    match storage {
        Storage::Cpu(storage) => of_cpu(storage),
        #[cfg(feature = "cuda")]
        Storage::Cuda(storage) => super::driver::address(storage),
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

/// Bytes of an element.
pub(super) fn size_of(dtype: DType) -> u64 {
    dtype.size_in_bytes() as u64
}
