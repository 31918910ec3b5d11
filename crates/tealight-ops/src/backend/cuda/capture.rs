//! State of the CUDA graph that this thread is capturing: its random streams, and refusals.
//!
//! A replay uses other random numbers than the capture. Kernels in a graph therefore read the key of their
//! stream from a table in device memory, which each replay overwrites.

#![cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "graphs are captured on CUDA only"))]

use std::cell::RefCell;

use bytemuck::NoUninit;
use candle_core::{Result, bail};

use crate::rng::Stream;

/// The number of keys in the table.
pub(super) const MOST_KEYS: usize = 4096;
const KEY_BYTES: usize = 8;

thread_local! {
    /// `Some` while this thread captures.
    static DRAWS: RefCell<Option<Draws>> = const { RefCell::new(None) };
}

struct Draws {
    /// The parent of all streams that are drawn from.
    stream: Stream,
    /// The address of the table.
    table: u64,
    /// The numbers of the forks, in the order of their keys in the table.
    forks: Vec<u64>,
}

/// This thread starts capturing: kernels find the keys of forks of `stream` in the table at this address.
pub(super) fn begin(stream: Stream, table: u64) {
    DRAWS.set(Some(Draws { stream, table, forks: Vec::new() }));
}

/// This thread stops capturing. Returns the forks whose keys the graph reads, in the order of the table.
pub(super) fn end() -> Vec<u64> {
    DRAWS.take().map(|draws| draws.forks).unwrap_or_default()
}

/// The key of a random stream, as kernels take it: `Key` in `prelude.cuh`.
#[derive(Clone, Copy, NoUninit)]
#[repr(C)]
pub(crate) struct Key {
    words: [u32; 2],
    /// During the capture of a CUDA graph, the address of the words; else 0.
    at: u64,
}

impl Key {
    /// For a kernel that draws nothing.
    pub(crate) const NONE: Self = Self { words: [0; 2], at: 0 };

    /// # Errors
    /// If a CUDA graph is being captured that cannot replay draws from `stream`.
    pub(crate) fn from_stream(stream: Stream) -> Result<Self> {
        Ok(Self { words: stream.key(), at: address_of_key(stream)? })
    }
}

/// The address of the key of `stream` during a capture, else 0.
///
/// # Errors
/// If `stream` is not a fork of the capture's stream, or the table is full.
fn address_of_key(stream: Stream) -> Result<u64> {
    DRAWS.with_borrow_mut(|draws| {
        let Some(Draws { stream: parent, table, forks }) = draws else { return Ok(0) };
        let Some(fork) = stream.number_in(*parent) else {
            bail!("a captured pass draws from a random stream of its own")
        };
        let place = forks.iter().position(|&other| other == fork).unwrap_or_else(|| {
            forks.push(fork);
            forks.len() - 1
        });
        if place >= MOST_KEYS {
            bail!("a captured pass draws from more than {MOST_KEYS} random streams")
        }
        Ok(*table + (place * KEY_BYTES) as u64)
    })
}

/// Refuses an operation that a graph cannot repeat.
///
/// # Errors
/// During a capture.
pub(super) fn refuse(what: &str) -> Result<()> {
    if DRAWS.with_borrow(Option::is_some) {
        bail!("{what} cannot be captured in a CUDA graph")
    }
    Ok(())
}
