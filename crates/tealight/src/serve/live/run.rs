//! `/runs/NAME/events`: `{"restart", "lines", "state", "step"}` whenever a run has changed.

use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::response::Response;
use serde_json::{Value, json};
use tokio::sync::mpsc::{self, Sender};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep};

use super::tail::{News, Tail};
use crate::serve::app::Shared;
use crate::serve::fault::Fault;
use crate::serve::http::events;

/// The time between two looks at the files.
const PAUSE: Duration = Duration::from_millis(250);
/// The time after which a comment is sent if nothing else was, which finds out that a client is gone.
const SIGN: Duration = Duration::from_secs(10);
/// The lines of the first event; of more, every second, third or further one of the training split is sent.
const MAX_LINES: usize = 4000;

/// The states of a run that a page shows.
const DELETED: &str = "deleted";

pub(in crate::serve) async fn follow(
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Response, Fault> {
    let path = app.catalogue.run(&name)?.path;
    let place = app.follow()?;
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        send_changes(path, sender).await;
        drop(place);
    });
    Ok(events::answer(receiver))
}

/// Sends each change until the run is deleted or the client is gone.
async fn send_changes(path: PathBuf, sender: Sender<Bytes>) {
    let mut tail = Tail::new(path.join("metrics.jsonl"));
    let (mut before, mut step) = (None, None);
    let mut sent = Instant::now();
    loop {
        let directory = path.clone();
        let read = move || {
            let news = tail.read().unwrap_or_default();
            (tail, news, state(&directory))
        };
        let Ok((same, news, state)) = spawn_blocking(read).await else { return };
        tail = same;
        let is_first = before.is_none();
        if is_first || news.restart || !news.lines.is_empty() || before != Some(state) {
            step = last_step(&news).or(step.filter(|_| !news.restart));
            let restart = news.restart || is_first;
            let lines = thinned(news.lines);
            let change =
                json!({ "restart": restart, "lines": lines, "state": state, "step": step });
            if sender.send(events::data(&change)).await.is_err() || state == DELETED {
                return;
            }
            (before, sent) = (Some(state), Instant::now());
        } else if sent.elapsed() > SIGN {
            if sender.send(Bytes::from_static(b":\n\n")).await.is_err() {
                return;
            }
            sent = Instant::now();
        }
        sleep(PAUSE).await;
    }
}

/// What the files of a run tell.
pub(super) fn state(directory: &FilePath) -> &'static str {
    let has = |file: &str| directory.join(file).exists();
    match (has("manifest.json"), has("summary.json")) {
        (false, _) => DELETED,
        (true, true) => "finished",
        (true, false) => "in progress",
    }
}

fn last_step(news: &News) -> Option<u64> {
    news.lines.iter().rev().find_map(|line| line["step"].as_u64())
}

/// At most about [`MAX_LINES`] lines of the training split, evenly spaced, and all others.
fn thinned(lines: Vec<Value>) -> Vec<Value> {
    let every = lines.len().div_ceil(MAX_LINES).max(1);
    let is_kept =
        |(at, line): &(usize, Value)| at.is_multiple_of(every) || line["split"] != "train";
    lines.into_iter().enumerate().filter(is_kept).map(|(_, line)| line).collect()
}
