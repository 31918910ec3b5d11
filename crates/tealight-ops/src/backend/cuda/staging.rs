//! Asynchronous copies to a GPU, through pinned host memory.
//!
//! A copy from pageable memory synchronises with the stream: it begins when all earlier work is done.

#![expect(
    unsafe_code,
    reason = "copies to addresses and pinned memory have no safe interface in cudarc"
)]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{LazyLock, Mutex, PoisonError};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::memcpy_htod_async;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice};
use candle_core::{CudaDevice, DType, Device, Result, bail};

use super::buffer::Buffer;
use super::capture;

/// The most copies in flight for each device.
const MOST: usize = 64;
const LEAST_BYTES: usize = 4096;

struct Staging {
    bytes: PinnedHostSlice<u8>,
    /// Recorded after its last copy.
    copied: CudaEvent,
}

/// By device, least recently used first.
type Pool = BTreeMap<usize, VecDeque<Staging>>;

/// A buffer of `len` elements of `dtype` with these bytes. The copy is queued on the stream.
pub(crate) fn copied(device: &Device, bytes: &[u8], len: usize, dtype: DType) -> Result<Buffer> {
    if bytes.len() != len * dtype.size_in_bytes() {
        bail!("{} bytes for {len} numbers of {dtype:?}", bytes.len())
    }
    let mut buffer = Buffer::unwritten(len, dtype, device)?;
    overwrite(&mut buffer, bytes, device.as_cuda_device()?)?;
    Ok(buffer)
}

/// Queues a copy of `bytes` to the beginning of a buffer.
///
/// # Errors
/// If the buffer is smaller, or a CUDA graph is being captured.
pub(super) fn overwrite(buffer: &mut Buffer, bytes: &[u8], device: &CudaDevice) -> Result<()> {
    static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);
    capture::refuse("a copy to the GPU")?;
    if bytes.len() > buffer.n_bytes() {
        bail!("{} bytes for a buffer of {}", bytes.len(), buffer.n_bytes())
    }
    let stream = device.cuda_stream();
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = pool.entry(stream.context().ordinal()).or_default();
    let mut staging = take(pool, &stream, bytes.len())?;
    let staged = &mut staging.bytes.as_mut_slice().w()?[..bytes.len()];
    staged.copy_from_slice(bytes);
    // SAFETY: the buffer has room for the bytes, and the staging memory is not written before `copied` is complete.
    unsafe { memcpy_htod_async(buffer.address_of(0)?, staged, stream.cu_stream()) }.w()?;
    if let Err(error) = staging.copied.record(&stream) {
        stream.synchronize().w()?; // no event says when the copy is complete
        return Err(error).w();
    }
    pool.push_back(staging);
    Ok(())
}

/// Staging memory of at least `n` bytes whose last copy is complete. One that is too small is freed and replaced.
fn take(pool: &mut VecDeque<Staging>, stream: &CudaStream, n: usize) -> Result<Staging> {
    if pool.front().is_some_and(|first| pool.len() >= MOST || first.copied.is_complete())
        && let Some(first) = pool.pop_front()
    {
        first.copied.synchronize().w()?;
        if first.bytes.len() >= n {
            return Ok(first);
        }
    }
    let n = n.next_power_of_two().max(LEAST_BYTES);
    // SAFETY: bytes are written before they are read.
    let bytes = unsafe { stream.context().alloc_pinned(n) }.w()?;
    // An event that was never recorded counts as complete.
    Ok(Staging { bytes, copied: stream.context().new_event(None).w()? })
}
