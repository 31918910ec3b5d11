//! The key of a stream, as kernels take it.

use candle_core::Result;

use super::capture;
use super::launch::Plain;
use crate::rng::Stream;

/// `Key` in `prelude.cuh`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Key {
    words: [u32; 2],
    /// Where the words are instead, in a pass that is recorded.
    at: u64,
}

#[expect(unsafe_code, reason = "see `Plain`")]
// SAFETY: the kernels' struct has these fields, in this order.
unsafe impl Plain for Key {}

impl Key {
    /// Of nothing that is drawn.
    pub(crate) const NONE: Self = Self { words: [0; 2], at: 0 };

    pub(crate) fn of(stream: Stream) -> Result<Self> {
        Ok(Self { words: stream.key(), at: capture::address_of_key(stream)? })
    }
}
