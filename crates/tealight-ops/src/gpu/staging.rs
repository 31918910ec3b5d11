//! Copies to a GPU that nobody waits for: through pinned memory, which the GPU reads by itself.
//!
//! From other memory the driver copies only when all that was asked for before is done.

#![expect(unsafe_code, reason = "cudarc's copies take slices of its own, and not addresses")]

use std::collections::{BTreeMap, VecDeque};
use std::sync::{LazyLock, Mutex, PoisonError};

use candle_core::cuda_backend::WrapErr;
use candle_core::cuda_backend::cudarc::driver::result::memcpy_htod_async;
use candle_core::cuda_backend::cudarc::driver::{CudaEvent, CudaStream, PinnedHostSlice};
use candle_core::{CudaDevice, Result};

use super::Buffer;

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

/// Copies `bytes` to where `to` begins, when it is their turn in the queue.
pub(crate) fn copy(device: &CudaDevice, bytes: &[u8], to: &Buffer) -> Result<()> {
    static POOL: LazyLock<Mutex<Pool>> = LazyLock::new(Mutex::default);
    let stream = device.cuda_stream();
    let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = pool.entry(stream.context().ordinal()).or_default();
    let mut staging = take(pool, &stream, bytes.len())?;
    staging.copied.synchronize().w()?;
    let staged = &mut staging.bytes.as_mut_slice().w()?[..bytes.len()];
    staged.copy_from_slice(bytes);
    // SAFETY: `to` has room for them, and what is staged stays as it is until the event.
    unsafe { memcpy_htod_async(to.address()?, staged, stream.cu_stream()) }.w()?;
    staging.copied.record(&stream).w()?;
    pool.push_back(staging);
    Ok(())
}

/// One that is free, or a new one. One that is too small is given up: soon all are as large as they need be.
fn take(pool: &mut VecDeque<Staging>, stream: &CudaStream, n: usize) -> Result<Staging> {
    let is_full = pool.len() >= MOST;
    let is_free = |first: &Staging| is_full || first.copied.is_complete();
    let first = if pool.front().is_some_and(is_free) { pool.pop_front() } else { None };
    if let Some(first) = first.filter(|first| first.bytes.len() >= n) {
        return Ok(first);
    }
    let n = n.next_power_of_two().max(LEAST_BYTES);
    // SAFETY: what is read of it has been written before.
    let bytes = unsafe { stream.context().alloc_pinned(n) }.w()?;
    Ok(Staging { bytes, copied: stream.record_event(None).w()? })
}
