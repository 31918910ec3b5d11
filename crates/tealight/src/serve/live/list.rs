//! `/events`: the list of runs and models whenever it has changed.

use std::path::Path;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use tealight_train::observer::jsonl::Entry;
use tealight_train::run::{Lock, RunDirectory};
use tealight_train::task::TaskConfig;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::report::text::metric_name;
use crate::runs::ended::Ended;
use crate::runs::last_lines::last_lines;
use crate::runs::summary::Summary;
use crate::serve::app::{App, Shared};
use crate::serve::fault::Fault;
use crate::serve::http::body::beside;
use crate::serve::http::events;
use crate::serve::models::loaded::is_served;
use crate::serve::models::table::Item;

/// The time between two searches.
const PAUSE: Duration = Duration::from_secs(1);
/// The bytes at the end of `metrics.jsonl` among which the last lines are looked for.
const END: u64 = 1 << 16;
/// The metric of a task that says most, where it is none of [`COMMON_METRICS`] or not the first of them.
const METRICS: [(&str, &str); 2] = [("causal_lm", "loss"), ("seq2seq", "exact_match")];
const COMMON_METRICS: [&str; 4] = ["accuracy", "pearson", "mse", "loss"];
/// Without a change, the list is sent again after so many searches, which finds out that a client is gone.
const SEARCHES: usize = 10;

pub(in crate::serve) async fn follow(State(app): State<Shared>) -> Result<Response, Fault> {
    let place = app.follow()?;
    let (sender, receiver) = mpsc::channel(4);
    tokio::spawn(async move {
        let (mut before, mut unchanged) = (None, 0);
        while let Ok((list, event)) = listed(&app).await {
            unchanged = if before.as_ref() == Some(&list) { unchanged + 1 } else { 0 };
            let is_due = unchanged % SEARCHES == 0;
            if is_due && sender.send(event).await.is_err() {
                break;
            }
            before = Some(list);
            sleep(PAUSE).await;
        }
        drop(place);
    });
    Ok(events::answer(receiver))
}

/// The list, and its event.
async fn listed(app: &Shared) -> Result<(Vec<Line>, Bytes), Fault> {
    app.catalogue.refresh().await?;
    let app = app.clone();
    beside(move || {
        let list = list(&app);
        let event = events::data(&list);
        (list, event)
    })
    .await
}

/// What the list shows of a run or model.
#[derive(Debug, PartialEq, Serialize)]
pub(in crate::serve) struct Line {
    pub(in crate::serve) name: String,
    pub(in crate::serve) is_run: bool,
    pub(in crate::serve) task: Option<String>,
    pub(in crate::serve) state: Option<&'static str>,
    pub(in crate::serve) step: Option<u64>,
    /// Its chief metric.
    pub(in crate::serve) metric: Option<Metric>,
    /// When it was started, in UTC: `2026-11-27T00:12:17Z`
    pub(in crate::serve) started: Option<String>,
    /// Whether the playground has something for its task.
    pub(in crate::serve) is_usable: bool,
}

/// A value of a metric.
#[derive(Debug, PartialEq, Serialize)]
pub(in crate::serve) struct Metric {
    /// As pages show it.
    pub(in crate::serve) name: String,
    pub(in crate::serve) value: f64,
}

/// All runs and models. Files of each run are read.
pub(in crate::serve) fn list(app: &App) -> Vec<Line> {
    app.catalogue.items().into_iter().map(line).collect()
}

fn line(Item { name, path, is_run }: Item) -> Line {
    if !is_run {
        let (task, state, step, metric, started) = (None, None, None, None, None);
        return Line { name, is_run, task, state, step, metric, started, is_usable: true };
    }
    let (task, summary) = (task(&path), Summary::read(&path).ok().flatten());
    let lines = last_lines(&path.join("metrics.jsonl"), END);
    Line {
        name,
        is_run,
        state: Some(state(&path)),
        step: step(&path, summary.as_ref(), &lines),
        metric: metric(task.as_deref(), summary.as_ref(), &lines),
        started: started(&path),
        is_usable: task.as_deref().is_none_or(can_serve),
        task,
    }
}

/// Whether the server can use a run of this task.
fn can_serve(task: &str) -> bool {
    let task = TaskConfig::default_of(task);
    task.and_then(|task| task.settings().pipeline()).is_some_and(is_served)
}

/// How the run is doing, from the presence of files.
fn state(run: &Path) -> &'static str {
    if Lock::is_held(run) {
        "running"
    } else if run.join("summary.json").exists() {
        "finished"
    } else {
        "stopped"
    }
}

/// The task in the configuration of a run.
fn task(run: &Path) -> Option<String> {
    let source = RunDirectory::open(run).ok()?.resolved(&[]).ok()?;
    source.value("task.kind").ok()?
}

/// When the run was started.
fn started(run: &Path) -> Option<String> {
    Some(RunDirectory::open(run).ok()?.manifest().ok()?.started)
}

/// The updates that the run is known to have made: not every one has a line of metrics, a checkpoint, or an end.
fn step(run: &Path, summary: Option<&Summary>, lines: &[Entry]) -> Option<u64> {
    let ended = Ended::read(run).ok().flatten().map(|ended| ended.step);
    let saved = RunDirectory::open(run).ok().and_then(|run| run.checkpoints().latest().ok()?);
    let logged = lines.last().map(|line| line.step);
    [summary.map(|summary| summary.steps), ended, saved, logged].into_iter().flatten().max()
}

/// The first of the metrics of its task that the run has: of the final evaluation, or of the last one, or, before the
/// first evaluation, of training.
fn metric(task: Option<&str>, summary: Option<&Summary>, lines: &[Entry]) -> Option<Metric> {
    let of_task = METRICS.iter().filter(|(kind, _)| task == Some(*kind)).map(|(_, metric)| *metric);
    let mut names = of_task.chain(COMMON_METRICS);
    let last = |split: &str| lines.iter().rev().find(|line| line.split == split);
    let logged =
        last("validation").map(|line| (line, "")).or(last("train").map(|line| (line, "training ")));
    names.find_map(|name| {
        let (value, split) = match (summary, logged) {
            (Some(summary), _) => (summary.metrics.get(name).copied(), ""),
            (None, Some((line, split))) => (line.values.get(name).copied().flatten(), split),
            (None, None) => (None, ""),
        };
        Some(Metric { name: format!("{split}{}", metric_name(name)), value: value? })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new task says that it is served, or is added here.
    #[test]
    fn each_task_is_served_or_known_to_be_left_out() {
        const NOT_SERVED: [&str; 6] =
            ["seq2seq", "listops", "recall", "markov_icl", "state_tracking", "copying"];
        for kind in TaskConfig::KINDS {
            assert_ne!(can_serve(kind.name), NOT_SERVED.contains(&kind.name), "{}", kind.name);
        }
    }
}
