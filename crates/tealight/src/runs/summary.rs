//! `summary.json`: the final metrics, size and speed of a finished run, for `ablate` and other programs.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tealight_train::Session;
use tealight_train::run::RunDirectory;
use tealight_train::storage::files::{read_json, read_text, replace, to_json};
use tealight_train::task::RegisteredTask;
use tealight_train::task::report::{Goal, Report};

use super::notes::notes;
use crate::system::memory;

/// The format version that is written, and the newest that can be read.
const FORMAT_VERSION: u64 = 1;
const FILE: &str = "summary.json";

/// The content of `summary.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Summary {
    /// The format version of the file.
    format_version: u64,
    /// Metrics of the final evaluation; non-finite values are omitted.
    pub(crate) metrics: BTreeMap<String, f64>,
    /// Total number of scalar parameters.
    pub(crate) n_parameters: u64,
    /// Number of optimizer updates.
    pub(crate) steps: u64,
    /// Duration of the updates without evaluations and checkpoints, summed over all sessions of an
    /// interrupted run.
    pub(crate) seconds: f64,
    /// Updates per second.
    pub(crate) steps_per_second: f64,
    /// Training examples per second.
    pub(crate) examples_per_second: f64,
    /// Tokens per second, for tasks that count tokens.
    pub(crate) tokens_per_second: Option<f64>,
    /// Peak memory of the process that finished the run; `null` where the system does not report it.
    pub(crate) peak_memory_bytes: Option<u64>,
    /// The first step whose evaluation was 90 % of the way from the baseline to the limit, for tasks that know both.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) steps_to_90: Option<u64>,
    /// What of the data is not used, and settings that cannot do what their names say.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
}

impl Summary {
    /// Reads the summary of the run at `directory`; `None` if the run is not finished.
    pub(crate) fn read(directory: &Path) -> Result<Option<Self>> {
        let path = directory.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(read_json(&path, FORMAT_VERSION)?))
    }

    /// Writes the summary of a finished run. If this session took no step (`first_step` is the last
    /// step), only the metrics of an existing summary are replaced.
    pub(crate) fn write<T: RegisteredTask>(
        session: &Session<T>,
        directory: &RunDirectory,
        report: &Report,
        first_step: u64,
    ) -> Result<()> {
        let mut metrics = report.metrics.clone();
        metrics.retain(|_, value| value.is_finite());
        let previous = Self::read(directory.path())?;
        let summary = match previous.filter(|_| first_step == session.progress.step) {
            Some(previous) => Self { metrics, ..previous },
            None => Self::new(session, directory, metrics, report.goal.as_ref())?,
        };
        let path = directory.path().join(FILE);
        Ok(replace(&path, &to_json(&path, &summary)?)?)
    }

    fn new<T: RegisteredTask>(
        session: &Session<T>,
        directory: &RunDirectory,
        metrics: BTreeMap<String, f64>,
        goal: Option<&Goal>,
    ) -> Result<Self> {
        let Session { params, progress, .. } = session;
        let examples_per_step = session.examples_per_step() as f64;
        let lines = read_text(&directory.metrics_path())?;
        let speed = Speed::from_metrics(&lines, examples_per_step);
        let per_second = |count: f64| if speed.seconds > 0. { count / speed.seconds } else { 0. };
        Ok(Self {
            format_version: FORMAT_VERSION,
            metrics,
            n_parameters: params.n_parameters() as u64,
            steps: progress.step,
            seconds: speed.seconds,
            steps_per_second: per_second(speed.step as f64),
            examples_per_second: per_second(speed.step as f64 * examples_per_step),
            tokens_per_second: speed.tokens.map(per_second),
            peak_memory_bytes: memory::peak(),
            steps_to_90: goal.and_then(|goal| steps_to(goal, &lines)),
            notes: notes(session),
        })
    }
}

/// The first step whose evaluation has reached `goal`, from the lines of `metrics.jsonl`.
fn steps_to(goal: &Goal, metrics: &str) -> Option<u64> {
    let lines = metrics.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let evaluations = lines.filter(|line| line["split"] == "validation");
    let reached = |line: &Value| line[goal.metric].as_f64().is_some_and(|x| goal.is_reached(x));
    evaluations.filter(reached).filter_map(|line| line["step"].as_u64()).min()
}

/// Steps, duration and tokens of training, from the lines of `metrics.jsonl`.
#[derive(Debug, Default, PartialEq)]
struct Speed {
    step: u64,
    seconds: f64,
    tokens: Option<f64>,
}

impl Speed {
    /// The rate of a line holds for all steps since the previous line.
    fn from_metrics(metrics: &str, examples_per_step: f64) -> Self {
        let mut speed = Self::default();
        for line in metrics.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
            let (Some(step), Some(rate)) =
                (line["step"].as_u64(), line["examples_per_second"].as_f64())
            else {
                continue;
            };
            let examples = step.saturating_sub(speed.step) as f64 * examples_per_step;
            let seconds = examples / rate.max(f64::MIN_POSITIVE);
            speed.step = step;
            speed.seconds += seconds;
            if let Some(tokens_per_second) = line["tokens_per_second"].as_f64() {
                speed.tokens = Some(speed.tokens.unwrap_or(0.) + tokens_per_second * seconds);
            }
        }
        speed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_evaluation_that_is_most_of_the_way_counts() {
        let lines = "\
            {\"step\":5,\"split\":\"train\",\"accuracy\":1.0}\n\
            {\"step\":5,\"split\":\"validation\",\"accuracy\":0.91,\"loss\":0.3}\n\
            {\"step\":10,\"split\":\"validation\",\"accuracy\":0.925,\"loss\":0.09}\n\
            {\"step\":15,\"split\":\"validation\",\"accuracy\":0.9,\"loss\":null}\n";
        let goal = |metric, baseline, limit| Goal { metric, baseline, limit };
        assert_eq!(steps_to(&goal("accuracy", 0.25, 1.), lines), Some(10));
        assert_eq!(steps_to(&goal("accuracy", 0.1, 1.), lines), Some(5));
        assert_eq!(steps_to(&goal("loss", 1., 0.), lines), Some(10));
        assert_eq!(steps_to(&goal("loss", 0.5, 0.), lines), None);
    }

    #[test]
    fn the_time_of_training_is_the_sum_over_the_lines() {
        let lines = "\
            {\"step\":2,\"split\":\"train\",\"examples_per_second\":10.0,\"tokens_per_second\":70.0}\n\
            {\"step\":2,\"split\":\"validation\",\"loss\":0.5}\n\
            {\"step\":6,\"split\":\"train\",\"examples_per_second\":5.0,\"tokens_per_second\":35.0}\n\
            {\"step\":7,\"spl";
        // 2 steps of 5 examples at 10 a second, and 4 at 5 a second.
        let expected = Speed { step: 6, seconds: 1. + 4., tokens: Some(70. + 140.) };
        assert_eq!(Speed::from_metrics(lines, 5.), expected);
        assert_eq!(Speed::from_metrics("", 5.), Speed::default());
    }
}
