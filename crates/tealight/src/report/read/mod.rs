//! The directory of a run, as its page shows it.

pub(super) mod checkpoint;
pub(crate) mod cursor;
pub(super) mod log;
pub(super) mod maps;
pub(crate) mod plot;
pub(super) mod state;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::OnceLock;

use anyhow::Result;
use serde_json::Value;
use tealight_train::config::RunConfig;
use tealight_train::observer::samples::{self, SampleLine};
use tealight_train::run::{Manifest, RunDirectory};
use tealight_train::storage::files::{read_text, read_value};
use tealight_train::task::report::{Predictor, ReferenceScore};
use tealight_train::weather::Score;

use super::series::Series;
use crate::runs::config::LoadedConfig;
use crate::runs::summary::Summary;
use checkpoint::Checkpoint;
use log::Log;
use maps::Attention;
use plot::{Address, MAX_PICTURES, Plot};
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
    /// `metrics.jsonl`.
    pub(crate) log: Log,
    pub(crate) state: State,
    /// `report.json`: the final evaluation of its task.
    pub(crate) report: Option<Value>,
    pub(crate) summary: Option<Summary>,
    pub(crate) samples: Vec<SampleLine>,
    /// The size of the file of samples.
    pub(crate) sample_bytes: u64,
    pub(crate) checkpoints: Vec<Checkpoint>,
    /// Pictures of the samples, by example.
    pub(crate) pictures: BTreeMap<usize, Address>,
    /// Pictures of the final evaluation.
    pub(crate) plots: Vec<Plot>,
    /// Attention maps, or why there are none; `None` if nobody has asked for them.
    pub(crate) attention: Option<Result<Attention, String>>,
    /// What [`bayes`](Self::bayes) has computed.
    bayes: OnceLock<Option<Score>>,
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
        let summary = Summary::read(root)?;
        Ok(Self {
            name: name(&directory),
            resolved: read_text(&directory.resolved_path())?,
            manifest: directory.manifest()?,
            log: Log::read(&directory.metrics_path(), examples_per_step(&config))?,
            state: state(root, &config, summary.as_ref())?,
            report: optional(&root.join("report.json"), |path| Ok(read_value(path)?))?,
            samples: optional(&root.join(samples::FILE), |path| Ok(samples::read(path)?))?
                .unwrap_or_default(),
            sample_bytes: sample_bytes(root),
            checkpoints: Checkpoint::read_all(&directory, config.checkpoint.select)?,
            pictures: pictures(root),
            plots: Plot::find_all(&directory),
            attention: None,
            bayes: OnceLock::new(),
            summary,
            config,
            directory,
        })
    }

    /// Reads what a live page is told of again: the log from where it ended, state, results and checkpoints.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) fn read_on(&mut self) -> Result<()> {
        let root = self.directory.path();
        self.log.read_on()?;
        self.summary = Summary::read(root)?;
        self.state = state(root, &self.config, self.summary.as_ref())?;
        self.report = optional(&root.join("report.json"), |path| Ok(read_value(path)?))?;
        self.sample_bytes = sample_bytes(root);
        self.checkpoints = Checkpoint::read_all(&self.directory, self.config.checkpoint.select)?;
        Ok(())
    }

    /// Number of steps that the run is known to have made.
    pub(crate) fn step(&self) -> u64 {
        let saved = self.checkpoints.iter().map(|checkpoint| checkpoint.step).max();
        self.log.step.max(saved.unwrap_or(0))
    }

    /// What the scores of the run are compared with. The Bayes limit of weather that is drawn from a rule is known before
    /// the run is finished; all other scores are in `report.json`.
    pub(in crate::report) fn reference_scores(&self) -> Vec<ReferenceScore> {
        let limit = self.bayes().map(|score| [("accuracy", score.accuracy), ("nll", score.nll)]);
        let of_rule = |(metric, value)| ReferenceScore::new(Predictor::Bayes, metric, value);
        let mut scores: Vec<_> = limit.into_iter().flatten().map(of_rule).collect();
        for score in self.report.as_ref().map(ReferenceScore::read).into_iter().flatten() {
            let is_same = |known: &ReferenceScore| {
                (known.predictor, &known.metric) == (score.predictor, &score.metric)
            };
            if !scores.iter().any(is_same) {
                scores.push(score);
            }
        }
        scores
    }

    /// The scores of the best possible model, where the task knows them, computed at the first call.
    fn bayes(&self) -> Option<Score> {
        *self.bayes.get_or_init(|| self.config.task.settings().bayes())
    }

    /// The series of a metric.
    pub(crate) fn series_of(&self, split: &str, metric: &str) -> Option<&Series> {
        self.log.series.iter().find(|series| series.split == split && series.metric == metric)
    }
}

fn state(root: &Path, config: &RunConfig, summary: Option<&Summary>) -> Result<State> {
    let evaluated = summary.map(|summary| summary.steps);
    State::read(root, evaluated, config.training.steps)
}

/// The pictures of the first examples, at most [`MAX_PICTURES`], up to the first that has none.
fn pictures(root: &Path) -> BTreeMap<usize, Address> {
    let path = |example| samples::picture_path(root, example);
    let pictures = (0..MAX_PICTURES).map(|example| Address::of_png(&path(example)));
    (0..).zip(pictures.map_while(|picture| picture)).collect()
}

fn sample_bytes(root: &Path) -> u64 {
    root.join(samples::FILE).metadata().map_or(0, |file| file.len())
}

/// Training examples of one step.
fn examples_per_step(config: &RunConfig) -> f64 {
    config.training.batch_size as f64 * config.training.micro_batches as f64
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
