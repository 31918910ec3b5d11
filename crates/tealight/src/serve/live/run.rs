//! `/runs/NAME/events?cursor=120.0`: what has changed in a run since the cursor, as the module `report` defines it.
//!
//! Each event has its cursor as `id`, which a browser sends back when it connects again. A run that is deleted ends the
//! events with one called `deleted`.

use std::path::{Path as FilePath, PathBuf};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, Uri};
use axum::response::Response;
use serde_json::json;
use tokio::sync::mpsc::{self, Sender};
use tokio::time::{Instant, sleep};

use super::signature::Signature;
use crate::report::read::RunData;
use crate::report::read::cursor::Cursor;
use crate::report::update::update;
use crate::serve::app::{App, Shared, check_size};
use crate::serve::fault::Fault;
use crate::serve::http::body::beside;
use crate::serve::http::events;

/// The time between two looks at the files.
const PAUSE: Duration = Duration::from_millis(250);
/// A run whose changes took long to read is read less often: that takes at most one part of so many of the time.
const SHARE: u32 = 20;
/// The time after which a run is read also if no file has changed, because a process that is killed writes nothing, and
/// after which a comment finds out whether the client is gone.
const LONG: Duration = Duration::from_secs(10);

pub(in crate::serve) async fn follow(
    State(app): State<Shared>,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    let path = app.catalogue.run(&name).await?.path;
    let cursor = cursor(&uri, &headers)?;
    let place = app.follow()?;
    let (sender, receiver) = mpsc::channel(16);
    tokio::spawn(async move {
        send_changes(&app, path, cursor, sender).await;
        drop(place);
    });
    Ok(events::answer(receiver))
}

/// The place after which changes are sent: that of the last event that the client has, or of its page.
fn cursor(uri: &Uri, headers: &HeaderMap) -> Result<Cursor, Fault> {
    let last = headers.get("last-event-id").and_then(|id| id.to_str().ok());
    let of_page = uri.query().and_then(|query| query.strip_prefix("cursor="));
    let text = last.or(of_page).unwrap_or("0.0");
    text.parse().map_err(|error: anyhow::Error| Fault::bad(error.to_string()))
}

/// Sends each change until the run is deleted or the client is gone.
async fn send_changes(app: &App, path: PathBuf, mut cursor: Cursor, sender: Sender<Bytes>) {
    let mut seen: Option<Signature> = None;
    let mut run = None;
    let mut read_at = Instant::now();
    loop {
        let files = path.clone();
        let Ok(signature) = beside(move || Signature::read(&files)).await else { return };
        if signature.is_gone() {
            let _ = sender.send(events::named("deleted", &json!({}))).await;
            return;
        }
        let mut pause = PAUSE;
        if seen != Some(signature) || read_at.elapsed() > LONG {
            let started = Instant::now();
            let is_same = seen.is_some_and(|seen| seen.has_manifest_of(&signature));
            let known = run.take().filter(|_| is_same);
            let share = if known.is_some() { SHARE } else { 0 };
            let event = match read(app, &path, known, cursor).await {
                Some((read, until, event)) => {
                    run = Some(read);
                    cursor = until;
                    seen = Some(signature);
                    event
                }
                // A file is being replaced, or the run deleted: it is read again soon.
                None => Bytes::from_static(b":\n\n"),
            };
            if sender.send(event).await.is_err() {
                return;
            }
            read_at = Instant::now();
            pause = pause.max(started.elapsed() * share);
        }
        sleep(pause).await;
    }
}

/// The run, the cursor after what has changed since the given one, and the event that tells it. A run that is `known` is
/// read on from where its log ended.
async fn read(
    app: &App,
    path: &FilePath,
    known: Option<RunData>,
    cursor: Cursor,
) -> Option<(RunData, Cursor, Bytes)> {
    let path = path.to_owned();
    let turn = app.turn_to_read().await.ok()?;
    let changed = beside(move || {
        let _turn = turn;
        check_size(&path)?;
        let mut run = match known {
            Some(mut run) => {
                run.read_on()?;
                run
            }
            None => RunData::read(&path)?,
        };
        let change = update(&run, cursor);
        // All lines of a long run would stay in memory for as long as it is followed.
        run.log.recent = Vec::new();
        let until = change.cursor();
        let event = events::with_id(&until, &change);
        anyhow::Ok((run, until, event))
    });
    changed.await.ok()?.ok()
}
