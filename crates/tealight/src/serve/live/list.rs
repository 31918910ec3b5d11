//! `/events`: the list of runs and models whenever it has changed.

use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use serde_json::Value;
use tealight_train::config::ConfigSource;
use tealight_train::run::Lock;
use tealight_train::storage::files::open;
use tealight_train::task::TaskConfig;
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::serve::app::{App, Shared};
use crate::serve::fault::Fault;
use crate::serve::http::body::beside;
use crate::serve::http::events;
use crate::serve::models::loaded::is_served;
use crate::serve::models::table::Item;

/// The time between two searches.
const PAUSE: Duration = Duration::from_secs(1);
/// The bytes at the end of `metrics.jsonl` among which the last line is looked for.
const END: u64 = 4096;
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
    /// Whether the playground has something for its task.
    pub(in crate::serve) is_usable: bool,
}

/// All runs and models. Files of each run are read.
pub(in crate::serve) fn list(app: &App) -> Vec<Line> {
    app.catalogue.items().into_iter().map(line).collect()
}

fn line(Item { name, path, is_run }: Item) -> Line {
    let (task, state, step) = if is_run {
        (task(&path), Some(state(&path)), last_step(&path))
    } else {
        (None, None, None)
    };
    let is_usable = task.as_deref().is_none_or(can_serve);
    Line { name, is_run, task, state, step, is_usable }
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
    let source = ConfigSource::read(&run.join("resolved.toml"), &[]).ok()?;
    source.value("task.kind").ok()?
}

/// The step of the last whole line of `metrics.jsonl`.
fn last_step(run: &Path) -> Option<u64> {
    let mut file = open(&run.join("metrics.jsonl")).ok()?;
    let len = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(END))).ok()?;
    let mut bytes = Vec::new();
    file.take(END).read_to_end(&mut bytes).ok()?;
    let mut lines = bytes.split(|&byte| byte == b'\n').rev();
    let last: Value = lines.find_map(|line| serde_json::from_slice(line).ok())?;
    last["step"].as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A new task says that it is served, or is added here.
    #[test]
    fn each_task_is_served_or_known_to_be_left_out() {
        const NOT_SERVED: [&str; 2] = ["seq2seq", "listops"];
        for kind in TaskConfig::KINDS {
            assert_ne!(can_serve(kind.name), NOT_SERVED.contains(&kind.name), "{}", kind.name);
        }
    }
}
