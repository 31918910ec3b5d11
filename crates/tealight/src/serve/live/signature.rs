//! Whether the files of a run have changed, without reading them.

use std::fs;
use std::path::Path;
use std::time::SystemTime;

/// The files that a page shows and that change while a run trains.
const FILES: [&str; 8] = [
    "manifest.json",
    "metrics.jsonl",
    "samples.jsonl",
    "summary.json",
    "report.json",
    "ended.json",
    ".lock",
    "checkpoints/latest",
];

/// The sizes and times of the files of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Signature([Option<(u64, SystemTime)>; FILES.len()]);

impl Signature {
    pub(super) fn read(run: &Path) -> Self {
        let stamp = |file: &str| {
            let metadata = fs::metadata(run.join(file)).ok()?;
            Some((metadata.len(), metadata.modified().ok()?))
        };
        Self(FILES.map(stamp))
    }

    /// Whether the process that trains the run is the same, and the run is no other one of its name.
    pub(super) fn has_manifest_of(&self, other: &Self) -> bool {
        self.0[0] == other.0[0]
    }

    /// Whether there is no run any more.
    pub(super) fn is_gone(&self) -> bool {
        self.0[0].is_none()
    }
}
