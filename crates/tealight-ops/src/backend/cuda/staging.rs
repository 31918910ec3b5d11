//! Copies to a GPU that nobody waits for: through pinned memory, which the GPU reads by itself.
//!
//! From other memory the driver copies only when all that was asked for before is done.

#![expect(unsafe_code, reason = "cudarc's copies take slices of its own, and not addresses")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{LazyLock, Mutex, PoisonError};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::memcpy_htod_async;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice};
use candle_core::{CudaDevice, DType, Device, Result, bail};

use super::buffer::Buffer;
use super::capture;

/// So many copies may wait for their turn.
const MOST: usize = 64;
const LEAST_BYTES: usize = 4096;

struct Staging {
    bytes: PinnedHostSlice<u8>,
    /// When its last copy is done.
    copied: CudaEvent,
}

/// Those of each device, the one that was used first at the front.
type Pool = BTreeMap<usize, VecDeque<Staging>>;

/// `bytes` as `len` numbers of `dtype`, which are there when it is the copy's turn in the queue.
pub(crate) fn copied(device: &Device, bytes: &[u8], len: usize, dtype: DType) -> Result<Buffer> {
    if bytes.len() != len * dtype.size_in_bytes() {
        bail!("{} bytes for {len} numbers of {dtype:?}", bytes.len())
    }
    let mut buffer = Buffer::unwritten(len, dtype, device)?;
    overwrite(&mut buffer, bytes, device.as_cuda_device()?)?;
    Ok(buffer)
}

/// The same into a buffer that is there, of at least so many bytes.
pub(super) fn overwrite(buffer: &mut Buffer, bytes: &[u8], device: &CudaDevice) -> Result<()> {
    static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);
    capture::refuse("a copy to the GPU")?;
    let stream = device.cuda_stream();
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = pool.entry(stream.context().ordinal()).or_default();
    let mut staging = take(pool, &stream, bytes.len())?;
    let staged = &mut staging.bytes.as_mut_slice().w()?[..bytes.len()];
    staged.copy_from_slice(bytes);
    // SAFETY: the buffer has room for them, and what is staged stays as it is until the event.
    unsafe { memcpy_htod_async(buffer.address()?, staged, stream.cu_stream()) }.w()?;
    if let Err(error) = staging.copied.record(&stream) {
        stream.synchronize().w()?; // without an event nothing less says when it may be used again
        return Err(error).w();
    }
    pool.push_back(staging);
    Ok(())
}

/// One that is free, or a new one. One that is too small is given up: soon all are as large as they need be.
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
    // SAFETY: what is read of it has been written before.
    let bytes = unsafe { stream.context().alloc_pinned(n) }.w()?;
    // An event that was never recorded is over.
    Ok(Staging { bytes, copied: stream.context().new_event(None).w()? })
}
