//! The directory of a run, as its page shows it.

pub(super) mod checkpoint;
pub(crate) mod cursor;
pub(super) mod maps;
pub(super) mod plot;
pub(super) mod state;

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;
use tealight_train::config::RunConfig;
use tealight_train::observer::jsonl::{self, Entry};
use tealight_train::observer::samples::{self, SampleLine};
use tealight_train::run::{Manifest, RunDirectory};
use tealight_train::storage::files::read_text;

use super::series::{Clock, Series, series};
use crate::runs::config::LoadedConfig;
use crate::runs::summary::Summary;
use checkpoint::Checkpoint;
use cursor::Cursor;
use maps::Attention;
use plot::Plot;
use state::State;

/// Everything that a run's directory tells without its weights.
#[derive(Debug)]
pub(crate) struct RunData {
    pub(crate) directory: RunDirectory,
    /// The name of the directory, or what tells the run from others of this name.
    pub(crate) name: String,
    pub(crate) config: RunConfig,
    /// `resolved.toml`.
    pub(crate) resolved: String,
    pub(crate) manifest: Manifest,
    pub(crate) entries: Vec<Entry>,
    pub(crate) series: Vec<Series>,
    pub(crate) clock: Clock,
    pub(crate) state: State,
    /// `report.json`: the final evaluation of its task.
    pub(crate) report: Option<Value>,
    pub(crate) summary: Option<Summary>,
    pub(crate) samples: Vec<SampleLine>,
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Pictures of the final evaluation.
    pub(crate) plots: Vec<Plot>,
    /// Attention maps, or why there are none; `None` if nobody has asked for them.
    pub(crate) attention: Option<Result<Attention, String>>,
}

impl RunData {
    /// Reads the run at `path`, or the one that contains `path`.
    ///
    /// # Errors
    /// If `path` is no run, or if one of its files cannot be parsed; the error names the file. Files that a run lacks
    /// because it is young or was stopped are no errors.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let directory = RunDirectory::open(path)?;
        let LoadedConfig { config, .. } = LoadedConfig::of_run(&directory, &[])?;
        let root = directory.path();
        let entries = entries(&directory)?;
        let summary = Summary::read(root)?;
        let evaluated = summary.as_ref().map(|summary| summary.steps);
        let total = config.training.steps;
        Ok(Self {
            name: name(&directory),
            resolved: read_text(&directory.resolved_path())?,
            manifest: directory.manifest()?,
            series: series(&entries),
            clock: Clock::new(&entries, examples_per_step(&config)),
            state: State::of(root, evaluated, total)?,
            report: optional(&root.join("report.json"), json)?,
            samples: optional(&root.join(samples::FILE), |path| Ok(samples::read(path)?))?
                .unwrap_or_default(),
            checkpoints: Checkpoint::of(&directory)?,
            plots: Plot::of(&directory),
            attention: None,
            summary,
            entries,
            config,
            directory,
        })
    }

    /// Number of steps that the run is known to have made.
    pub(crate) fn step(&self) -> u64 {
        let logged = self.entries.iter().map(|entry| entry.step).max();
        let saved = self.checkpoints.iter().map(|checkpoint| checkpoint.step).max();
        logged.max(saved).unwrap_or(0)
    }

    /// The series of a metric.
    pub(crate) fn series_of(&self, split: &str, metric: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.split == split && series.metric == metric)
    }

    /// Where the file ended that the series were read from.
    pub(crate) fn cursor(&self) -> Cursor {
        Cursor::at_end(&self.entries)
    }
}

/// The lines of `metrics.jsonl`; none before the first report.
pub(in crate::report) fn entries(directory: &RunDirectory) -> Result<Vec<Entry>> {
    Ok(optional(&directory.metrics_path(), |path| Ok(jsonl::read(path)?))?.unwrap_or_default())
}

/// Training examples of one step.
pub(in crate::report) fn examples_per_step(config: &RunConfig) -> f64 {
    config.training.batch_size as f64 * config.training.micro_batches as f64
}

/// A file of JSON that has no version.
pub(in crate::report) fn json(path: &Path) -> Result<Value> {
    let text = read_text(path)?;
    serde_json::from_str(&text).with_context(|| format!("`{}` is not JSON", path.display()))
}

fn optional<T>(path: &Path, read: impl FnOnce(&Path) -> Result<T>) -> Result<Option<T>> {
    if path.exists() { read(path).map(Some) } else { Ok(None) }
}

/// The last part of the real path: `.` has no name.
fn name(directory: &RunDirectory) -> String {
    let real = std::fs::canonicalize(directory.path()).ok();
    let last = real.as_deref().and_then(Path::file_name);
    last.map_or_else(|| directory.name(), |name| name.to_string_lossy().into_owned())
}
