//! The key of a random stream, as kernels take it.

use candle_core::Result;

use super::capture;
use super::launch::Plain;
use crate::rng::Stream;

/// `Key` in `prelude.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Key {
    words: [u32; 2],
    /// During the capture of a CUDA graph, the address of the words; else 0.
    at: u64,
}

#[expect(unsafe_code, reason = "`Plain` is an unsafe trait")]
// SAFETY: `Key` in `prelude.cuh` has these fields, in this order.
unsafe impl Plain for Key {}

impl Key {
    /// For a kernel that draws nothing.
    pub(crate) const NONE: Self = Self { words: [0; 2], at: 0 };

    /// # Errors
    /// If a CUDA graph is being captured that cannot replay draws from `stream`.
    pub(crate) fn of(stream: Stream) -> Result<Self> {
        Ok(Self { words: stream.key(), at: capture::address_of_key(stream)? })
    }
}
