//! The result of one measurement, and what it is of.

use serde::{Deserialize, Serialize};

/// Forward alone, or forward and backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pass {
    Forward,
    ForwardAndBackward,
}

impl Pass {
    pub(super) const ALL: [Self; 2] = [Self::Forward, Self::ForwardAndBackward];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::ForwardAndBackward => "forward and backward",
        }
    }

    pub(super) fn file_name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::ForwardAndBackward => "forward_and_backward",
        }
    }
}

/// One kind, at one length, in one pass.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) kind: String,
    pub(super) length: usize,
    pub(super) pass: Pass,
    /// The measurement, or why it failed.
    pub(super) measured: Result<Measurement, String>,
}

/// Time, memory and size of a layer.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct Measurement {
    /// Median over the repeats.
    pub(super) seconds: f64,
    /// The shortest and the longest repeat.
    pub(super) range: [f64; 2],
    pub(super) n_repeats: usize,
    /// `null` where the system does not report it.
    pub(super) peak_memory_bytes: Option<u64>,
    pub(super) n_parameters: u64,
}

impl Measurement {
    pub(super) fn new(timing: Timing, Growth { peak_memory_bytes }: Growth) -> Self {
        let Timing { seconds, range, n_repeats, n_parameters } = timing;
        Self { seconds, range, n_repeats, peak_memory_bytes, n_parameters }
    }
}

/// The time of a layer, as the subprocess prints it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Timing {
    /// Median over the repeats.
    pub(super) seconds: f64,
    /// The shortest and the longest repeat.
    pub(super) range: [f64; 2],
    pub(super) n_repeats: usize,
    pub(super) n_parameters: u64,
}

/// The memory of a layer, as the subprocess prints it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Growth {
    /// `null` where the system does not report it.
    pub(super) peak_memory_bytes: Option<u64>,
}
