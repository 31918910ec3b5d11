//! Hugging Face's task schema (<https://huggingface.co/docs/inference-providers/tasks/fill-mask>).
//!
//! ```text
//! POST /models/NAME                       the task of the model
//! POST /models/NAME/pipeline/TASK         another task that it can do: feature-extraction
//! POST /                                  the only model
//!
//! {"inputs": "a text" or ["texts"], "parameters": {…}}      or the bytes of a picture
//! ```

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::response::Response;
use tealight_train::pipelines::image_classification::TOP_K;

use super::endpoints::{self, image_classification, max_body};
use crate::serve::app::{App, Shared};
use crate::serve::fault::Fault;
use crate::serve::http::body::read;
use crate::serve::limits::MAX_PICTURE;

/// `POST /`
pub(in crate::serve) async fn only(
    State(app): State<Shared>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    let name = app.catalogue.only()?;
    perform(&app, &name, None, &headers, body).await
}

/// `POST /models/NAME`
pub(in crate::serve) async fn named(
    State(app): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    perform(&app, &name, None, &headers, body).await
}

/// `POST /models/NAME/pipeline/TASK`
pub(in crate::serve) async fn pipeline(
    State(app): State<Shared>,
    Path((name, task)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    perform(&app, &name, Some(task), &headers, body).await
}

async fn perform(
    app: &App,
    name: &str,
    task: Option<String>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    let worker = app.catalogue.worker(name).await?;
    let own = worker.task().await?;
    // A picture in its own bytes has no other task.
    let is_json = is_json(headers);
    let asked = if is_json { task.as_deref().unwrap_or(own) } else { image_classification::NAME };
    let max = max_body(asked, own)?;
    let _place = app.place_for(stated_len(headers).map_or(max, |len| len.min(max))).await?;
    if !is_json {
        let picture = read(body, MAX_PICTURE).await?;
        return image_classification::classify(&worker, picture, TOP_K).await;
    }
    endpoints::answer(asked, &worker, read(body, max).await?).await
}

/// The length of the body, if the request states it.
fn stated_len(headers: &HeaderMap) -> Option<usize> {
    headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.to_ascii_lowercase().starts_with("application/json"))
}
