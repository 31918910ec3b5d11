//! Where the time goes: how often each operation ran, forward and backward, and for how long.
//!
//! One profile at a time, of all threads that call operations. While there is none, an operation
//! pays one look at a flag.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

static RUNNING: AtomicBool = AtomicBool::new(false);
static TIMES: Mutex<BTreeMap<Part, Time>> = Mutex::new(BTreeMap::new());

/// What was timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    /// The operation; [`CANDLE`] for stretches of Candle's own between ours.
    pub name: &'static str,
    /// Which way it ran.
    pub pass: Pass,
}

/// Which way an operation ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pass {
    /// From inputs to results.
    Forward,
    /// From the gradients of results to those of inputs.
    Backward,
    /// Beside the model: data, updates.
    Neither,
}

/// The name of the backward of Candle's operations. Their forward cannot be timed from here.
pub const CANDLE: &str = "candle";

/// How often, and how long in all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Calls.
    pub count: u64,
    /// Wall time, of the calling thread.
    pub total: Duration,
}

/// Begins an empty profile.
pub fn start() {
    TIMES.lock().unwrap_or_else(PoisonError::into_inner).clear();
    RUNNING.store(true, Ordering::Relaxed);
}

/// StopRules the profile: what ran since [`start`], by name.
pub fn stop() -> BTreeMap<Part, Time> {
    RUNNING.store(false, Ordering::Relaxed);
    std::mem::take(&mut TIMES.lock().unwrap_or_else(PoisonError::into_inner))
}

/// `f`, timed if a profile is running. What is timed within something timed counts twice.
pub fn timed<R>(name: &'static str, pass: Pass, f: impl FnOnce() -> R) -> R {
    if !RUNNING.load(Ordering::Relaxed) {
        return f();
    }
    let start = Instant::now();
    let result = f();
    let elapsed = start.elapsed();
    let mut times = TIMES.lock().unwrap_or_else(PoisonError::into_inner);
    let time = times.entry(Part { name, pass }).or_default();
    time.count += 1;
    time.total += elapsed;
    result
}
