//! A profile of operations: how often each ran, forward and backward, and for how long.
//!
//! There is one profile at a time, for all threads. Cost while none is running: one check of a flag per operation.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

static RUNNING: AtomicBool = AtomicBool::new(false);
static TIMES: Mutex<BTreeMap<Part, Time>> = Mutex::new(BTreeMap::new());

/// An operation and its pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The operation's name; [`CANDLE`] for Candle's own operations.
    pub name: &'static str,
    /// Forward or backward.
    pub phase: Phase,
}

/// The pass that an operation ran in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// From inputs to results.
    Forward,
    /// From the gradients of results to the gradients of inputs.
    Backward,
    /// Outside of the model: data, updates.
    Other,
}

/// The name of Candle's own operations. Only their backward is timed.
pub const CANDLE: &str = "candle";

/// Number of calls and total time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Calls.
    pub count: u64,
    /// Wall time of the calling threads.
    pub total: Duration,
}

/// Starts an empty profile.
pub fn start() {
    TIMES.lock().unwrap_or_else(PoisonError::into_inner).clear();
    RUNNING.store(true, Ordering::Relaxed);
}

/// Ends the profile and returns all that ran since [`start`].
pub fn stop() -> BTreeMap<Part, Time> {
    RUNNING.store(false, Ordering::Relaxed);
    std::mem::take(&mut TIMES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Runs `f`, timed if a profile is running. The time of nested calls is part of both entries.
pub fn timed<R>(name: &'static str, phase: Phase, f: impl FnOnce() -> R) -> R {
    if !RUNNING.load(Ordering::Relaxed) {
        return f();
    }
    let start = Instant::now();
    let result = f();
    let elapsed = start.elapsed();
    let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
    let time = times.entry(Part { name, phase }).or_default();
    time.count += 1;
    time.total += elapsed;
    result
}
