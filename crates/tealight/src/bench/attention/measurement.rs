//! The result of one measurement, and what it is of.

use serde::{Deserialize, Serialize};

use crate::args::bench::Pass;

/// One kind, at one length, in one pass.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) kind: String,
    pub(super) length: usize,
    pub(super) pass: Pass,
    /// The measurement, or why it failed.
    pub(super) measured: Result<Measurement, String>,
}

/// Time, memory and size of a layer, as a report and the subprocess that measures the time print them.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Measurement {
    /// Median over the repeats.
    pub(super) seconds: f64,
    /// The shortest and the longest repeat.
    pub(super) range: [f64; 2],
    pub(super) n_repeats: usize,
    /// `null` where the system does not report it; measured by another subprocess.
    pub(super) peak_memory_bytes: Option<u64>,
    /// What decoding keeps of the sequence; `null` in other passes.
    pub(super) state_bytes: Option<u64>,
    pub(super) n_parameters: u64,
}
