//! `atlas.json`: what the finished cells of an atlas have reached.
//!
//! It is merged from cells that were trained at different times and on different machines. A cell counts as long as its
//! settings are those of the plan. Two machines have trained the same cell to the bit if its `hash` is the same.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tealight_model::ModelConfig;
use tealight_model::models::state::state_bytes;
use tealight_ops::instructions;
use tealight_train::config::RunConfig;
use tealight_train::observer::jsonl;
use tealight_train::run::RunDirectory;
use tealight_train::storage::files::{read_json, read_value, replace};

use super::cells::Cell;
use super::plan::{Column, Panel};
use crate::runs::summary::Summary;
use crate::system::processor;
use crate::system::version::VERSION;

/// The format version that is written, and the newest that can be read.
const FORMAT_VERSION: u64 = 1;
/// The name of the file.
pub(super) const FILE: &str = "atlas.json";
/// The weights of a checkpoint.
const WEIGHTS: &str = "model.safetensors";
/// Tokens after which the size of a state is given.
pub(super) const STATE_LENGTHS: [usize; 2] = [32, 1024];

/// The content of the file.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    format_version: u64,
    /// SHA-256 of the plan.
    pub(super) plan: String,
    /// By name, such as `recall/softmax,lr=0.003,seed=1`.
    pub(super) cells: BTreeMap<String, CellRecord>,
}

/// A trained cell.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CellRecord {
    /// SHA-256 of the settings.
    pub(super) settings: String,
    /// SHA-256 of the settings and the weights.
    pub(super) hash: String,
    pub(super) instructions: String,
    pub(super) processor: String,
    pub(super) version: String,
    /// The message, if training failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
    /// The failure is a score that no model can have.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) is_fault: bool,
    /// The least loss on the validation split, by which the rate is chosen.
    pub(super) validation_loss: Option<f64>,
    /// By the title of the column.
    #[serde(default)]
    pub(super) scores: BTreeMap<String, Score>,
    /// The accuracy by position or distance on the last test.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub(super) bins: Value,
    pub(super) steps: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) steps_to_90: Option<u64>,
    /// Of the updates alone.
    pub(super) seconds: f64,
    /// All parameters.
    pub(super) n_parameters: u64,
    /// Bytes of the decoding state after each of [`STATE_LENGTHS`]; empty unless the model is causal.
    #[serde(default)]
    pub(super) state_bytes: Vec<u64>,
    pub(super) peak_memory_bytes: Option<u64>,
}

/// A score of a cell beside its limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Score {
    pub(super) value: f64,
    /// Over the examples, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) error: Option<f64>,
    /// The best possible value, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<f64>,
}

impl Score {
    /// Whether it is within a standard error, or 0.001, of the limit.
    pub(super) fn is_at_limit(self) -> bool {
        let Self { value, error, limit } = self;
        limit.is_some_and(|limit| (limit - value).abs() <= error.unwrap_or(0.).max(1e-3))
    }
}

impl Record {
    /// That of a plan of which nothing is trained.
    pub(super) fn empty(plan: &str) -> Self {
        Self { format_version: FORMAT_VERSION, plan: plan.to_owned(), cells: BTreeMap::new() }
    }

    /// Reads the record at `path`; if there is no such file, the record is empty.
    pub(super) fn read(path: &Path) -> Result<Self> {
        if !path.exists() {
            return Ok(Self::empty(""));
        }
        read_json(path, FORMAT_VERSION)
            .with_context(|| format!("`{}` is not the record of an atlas", path.display()))
    }

    /// Writes it with one line for each cell.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let Self { format_version, plan, cells } = self;
        let lines = cells.iter().map(|(name, cell)| {
            Ok(format!("    {}: {}", serde_json::to_string(name)?, serde_json::to_string(cell)?))
        });
        let lines = lines.collect::<Result<Vec<String>>>()?.join(",\n");
        let plan = serde_json::to_string(plan)?;
        let text = format!(
            "{{\n  \"format_version\": {format_version},\n  \"plan\": {plan},\n  \"cells\": {{\n{lines}\n  }}\n}}\n"
        );
        Ok(replace(path, text.as_bytes())?)
    }

    /// Takes cells of another record: those of the plan if their settings are its own and this record has none that is
    /// finished, and all others that it does not have.
    pub(super) fn take(&mut self, other: Self, plan: &[Cell]) {
        let of_plan: BTreeMap<&str, &Cell> =
            plan.iter().map(|cell| (cell.name.as_str(), cell)).collect();
        for (name, record) in other.cells {
            let own = self.cells.get(&name);
            let is_wanted = match of_plan.get(name.as_str()) {
                Some(cell) => {
                    let is_better = own.is_none_or(|own| {
                        own.settings != cell.digest
                            || (own.failure.is_some() && record.failure.is_none())
                    });
                    record.settings == cell.digest && is_better
                }
                None => own.is_none(),
            };
            if is_wanted {
                self.cells.insert(name, record);
            }
        }
    }

    /// The record of a cell, if it is one of the same settings.
    pub(super) fn of(&self, cell: &Cell) -> Option<&CellRecord> {
        self.cells.get(&cell.name).filter(|record| record.settings == cell.digest)
    }
}

impl CellRecord {
    /// That of a cell whose run is finished.
    pub(super) fn of_run(
        cell: &Cell,
        panel: &Panel,
        config: &RunConfig,
        directory: &RunDirectory,
        summary: &Summary,
    ) -> Result<Self> {
        let path = directory.path().join("report.json");
        let report = read_value(&path)?;
        let (checkpoint, _note) = directory.checkpoints().select(None, config.checkpoint.select)?;
        let weights = checkpoint.join(WEIGHTS);
        let bytes = std::fs::read(&weights)
            .with_context(|| format!("cannot read `{}`", weights.display()))?;
        let mut hash = Sha256::new();
        hash.update(&cell.digest);
        hash.update(&bytes);
        let scores = panel.columns.iter().map(|column| {
            let Some(score) = score(column, &report) else {
                bail!(
                    "panel `{}`, column `{}`: `{}` has no `{}`{}",
                    panel.name,
                    column.title,
                    path.display(),
                    column.metric,
                    column
                        .test
                        .as_ref()
                        .map_or(String::new(), |test| format!(" of the test `{test}`"))
                )
            };
            Ok((column.title.clone(), score))
        });
        let last = panel.columns.last().and_then(|column| place(column, &report));
        let bins = last.and_then(|values| {
            let entries = values.as_object()?.iter();
            entries.filter(|(key, _)| key.starts_with("by_")).map(|(_, bins)| bins.clone()).next()
        });
        Ok(Self {
            hash: format!("{:x}", hash.finalize()),
            validation_loss: validation_loss(directory)?,
            scores: scores.collect::<Result<_>>()?,
            bins: bins.unwrap_or_default(),
            steps: summary.steps,
            steps_to_90: summary.steps_to_90,
            seconds: summary.seconds,
            n_parameters: summary.n_parameters,
            state_bytes: sizes_of_state(&config.model)?,
            peak_memory_bytes: summary.peak_memory_bytes,
            ..Self::failed(cell, None)
        })
    }

    /// That of a cell whose training failed.
    pub(super) fn failed(cell: &Cell, failure: Option<String>) -> Self {
        Self {
            settings: cell.digest.clone(),
            hash: String::new(),
            instructions: instructions().to_owned(),
            processor: processor::name().unwrap_or_else(|| "unknown".to_owned()),
            version: VERSION.to_owned(),
            failure,
            is_fault: false,
            validation_loss: None,
            scores: BTreeMap::new(),
            bins: Value::Null,
            steps: 0,
            steps_to_90: None,
            seconds: 0.,
            n_parameters: 0,
            state_bytes: Vec::new(),
            peak_memory_bytes: None,
        }
    }

    /// Whether every score is at its limit.
    pub(super) fn is_at_limit(&self) -> bool {
        !self.scores.is_empty() && self.scores.values().all(|score| score.is_at_limit())
    }
}

/// The values of the test of a column in the report of a run.
fn place<'a>(column: &Column, report: &'a Value) -> Option<&'a Value> {
    let Some(test) = &column.test else { return Some(report) };
    report["tests"].as_array()?.iter().find(|one| one["name"] == test.as_str())
}

fn score(column: &Column, report: &Value) -> Option<Score> {
    let values = place(column, report)?;
    let metric = column.metric.as_str();
    let of_limit = ["limit", "Bayes limit"]
        .into_iter()
        .find_map(|name| values["references"][name][metric].as_f64());
    Some(Score {
        value: values[metric].as_f64()?,
        error: values[format!("{metric}_standard_error")].as_f64(),
        limit: of_limit.or_else(|| values[format!("bayes_{metric}")].as_f64()),
    })
}

fn validation_loss(directory: &RunDirectory) -> Result<Option<f64>> {
    let entries = jsonl::read(&directory.metrics_path())?;
    let losses = entries.iter().filter(|entry| entry.split == "validation");
    let losses = losses.filter_map(|entry| entry.values.get("loss").copied().flatten());
    Ok(losses.filter(|loss| loss.is_finite()).reduce(f64::min))
}

fn sizes_of_state(config: &ModelConfig) -> Result<Vec<u64>> {
    let longest = STATE_LENGTHS.into_iter().max();
    let config = ModelConfig { max_seq_len: longest, ..config.clone() };
    let sizes = STATE_LENGTHS.into_iter().map(|len| Ok(state_bytes(&config, len)?));
    Ok(sizes.collect::<Result<Option<Vec<u64>>>>()?.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;

    fn column(test: Option<&str>, metric: &str) -> Column {
        Column { title: String::new(), test: test.map(str::to_owned), metric: metric.to_owned() }
    }

    #[test]
    fn scores_are_found_in_a_report_beside_their_limit() {
        let report = json!({
            "accuracy": 0.9, "accuracy_standard_error": 0.01, "bayes_accuracy": 1.0, "excess": 0.02, "bayes_excess": 0.0,
            "tests": [{ "name": "far", "accuracy": 0.995, "accuracy_standard_error": 0.006,
                        "references": { "chance": { "accuracy": 0.1 }, "limit": { "accuracy": 1.0 } } }],
        });
        let own = score(&column(None, "accuracy"), &report).unwrap();
        assert_eq!(own, Score { value: 0.9, error: Some(0.01), limit: Some(1.) });
        assert!(!own.is_at_limit());
        let far = score(&column(Some("far"), "accuracy"), &report).unwrap();
        assert!(far.is_at_limit());
        let excess = score(&column(None, "excess"), &report).unwrap();
        assert_eq!(excess, Score { value: 0.02, error: None, limit: Some(0.) });
        assert_eq!(score(&column(Some("near"), "accuracy"), &report), None);
    }

    #[test]
    fn a_record_that_is_written_is_read_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let empty = Record::read(&path).unwrap();
        assert!(empty.cells.is_empty());
        let cell = Cell::example("recall/softmax,seed=1");
        let record = CellRecord::failed(&cell, Some("diverged".to_owned()));
        let cells = BTreeMap::from([(cell.name.clone(), record)]);
        Record { plan: "p".to_owned(), cells, ..empty }.write(&path).unwrap();
        let read = Record::read(&path).unwrap();
        assert_eq!(read.of(&cell).unwrap().failure.as_deref(), Some("diverged"));
        let mut other = cell;
        other.digest = "other".to_owned();
        assert!(read.of(&other).is_none());
        let newer = fs::read_to_string(&path)
            .unwrap()
            .replace("\"format_version\": 1", "\"format_version\": 9");
        std::fs::write(&path, newer).unwrap();
        assert!(format!("{:#}", Record::read(&path).unwrap_err()).contains('9'));
    }

    #[test]
    fn a_cell_of_the_plan_is_taken_if_it_is_of_the_same_settings_and_better() {
        let cell = Cell::example("recall/softmax,seed=1");
        let record = |settings: &str, failure: Option<&str>, name: &str| {
            let failed = CellRecord::failed(&cell, failure.map(str::to_owned));
            let record =
                CellRecord { settings: settings.to_owned(), hash: name.to_owned(), ..failed };
            let cells = BTreeMap::from([(cell.name.clone(), record)]);
            Record { cells, ..Record::default() }
        };
        let hash = |record: &Record| record.cells.values().next().map(|cell| cell.hash.clone());
        let plan = [cell.clone()];
        let taken = |mut own: Record, other: Record| {
            own.take(other, &plan);
            hash(&own).unwrap_or_default()
        };
        let (good, failed) =
            (record("digest", None, "good"), record("digest", Some("x"), "failed"));
        let other = record("other", None, "other");
        assert_eq!(taken(Record::default(), good.clone()), "good");
        assert_eq!(taken(Record::default(), other.clone()), "");
        assert_eq!(taken(other.clone(), good.clone()), "good");
        assert_eq!(taken(good.clone(), other), "good");
        assert_eq!(taken(failed.clone(), good.clone()), "good");
        assert_eq!(taken(good, failed), "good");
    }
}
