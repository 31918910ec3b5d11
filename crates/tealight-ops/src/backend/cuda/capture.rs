//! The CUDA graph that this thread is capturing: where its random numbers come from, and what it refuses.

#![cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "without CUDA nothing is captured"))]

use std::cell::RefCell;

use candle_core::{Result, bail};

use crate::rng::Stream;

/// So many draws may be recorded.
pub(super) const MOST_KEYS: usize = 4096;
const KEY_BYTES: usize = 8;

thread_local! {
    /// The draws of the pass that this thread is recording.
    static DRAWS: RefCell<Option<Draws>> = const { RefCell::new(None) };
}

struct Draws {
    /// All are forks of it.
    stream: Stream,
    /// Where the key of the first is.
    table: u64,
    /// Which forks, each where its key is in the table.
    forks: Vec<u64>,
}

/// From here on this thread captures: draws of `stream` find their keys in `table`.
pub(super) fn begin(stream: Stream, table: u64) {
    DRAWS.set(Some(Draws { stream, table, forks: Vec::new() }));
}

/// This thread captures no longer: the forks that were drawn from.
pub(super) fn end() -> Vec<u64> {
    DRAWS.take().map(|draws| draws.forks).unwrap_or_default()
}

/// Where a kernel that is being recorded finds the key of `stream`; 0 where none is.
pub(super) fn address_of_key(stream: Stream) -> Result<u64> {
    DRAWS.with_borrow_mut(|draws| {
        let Some(Draws { stream: parent, table, forks }) = draws else { return Ok(0) };
        let Some(fork) = stream.number_in(*parent) else {
            bail!("random numbers that are not those of the recorded pass")
        };
        let place = forks.iter().position(|&other| other == fork).unwrap_or_else(|| {
            forks.push(fork);
            forks.len() - 1
        });
        if place >= MOST_KEYS {
            bail!("more than {MOST_KEYS} draws of random numbers")
        }
        Ok(*table + (place * KEY_BYTES) as u64)
    })
}

/// Refuses what would be done once, and not again with the rest.
pub(super) fn refuse(what: &str) -> Result<()> {
    if DRAWS.with_borrow(Option::is_some) {
        bail!("{what} cannot be recorded")
    }
    Ok(())
}
