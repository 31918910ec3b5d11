//! What a run has written, without measured times.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value};
use tealight_train::observer::jsonl::THROUGHPUT_KEYS;
use tealight_train::run::{Checkpoints, Selection};

use crate::common::Result;

/// The files of a run, without measured times.
#[derive(Debug, PartialEq)]
pub(crate) struct Outcome {
    /// The bytes of the latest checkpoint: parameters, optimizer, moving average, `state.json`.
    pub(crate) files: BTreeMap<String, Vec<u8>>,
    /// The lines of `metrics.jsonl`.
    pub(crate) metrics: Vec<Map<String, Value>>,
    pub(crate) best: Option<u64>,
    pub(crate) step: u64,
}

impl Outcome {
    pub(crate) fn read(directory: &Path, step: u64) -> Result<Self> {
        let checkpoints = Checkpoints::new(directory.join("checkpoints"));
        let mut files = BTreeMap::new();
        for entry in fs::read_dir(checkpoints.find(Selection::Latest)?)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            files.insert(name, fs::read(entry.path())?);
        }
        let mut metrics = Vec::new();
        for line in fs::read_to_string(directory.join("metrics.jsonl"))?.lines() {
            let mut line: Map<String, Value> = serde_json::from_str(line)?;
            line.retain(|key, _| !THROUGHPUT_KEYS.contains(&key.as_str()));
            metrics.push(line);
        }
        Ok(Self { files, metrics, best: checkpoints.best()?, step })
    }

    /// Panics with the name of the first file that differs.
    pub(crate) fn assert_same(&self, other: &Self, label: &str) {
        assert_eq!(self.metrics, other.metrics, "{label}: metrics.jsonl");
        assert_eq!((self.step, self.best), (other.step, other.best), "{label}: step, best");
        let names = |outcome: &Self| outcome.files.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(self), names(other), "{label}");
        for (name, bytes) in &self.files {
            assert!(*bytes == other.files[name], "{label}: {name} differs");
        }
    }

    /// A training metric of every step.
    pub(crate) fn trained(&self, metric: &str) -> Vec<f64> {
        let lines = self.metrics.iter().filter(|line| line["split"] == "train");
        lines.filter_map(|line| line[metric].as_f64()).collect()
    }
}
