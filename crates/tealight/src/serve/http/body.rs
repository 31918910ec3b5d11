//! Reads the bodies of requests, within a time and a size, and writes answers in JSON.
//!
//! What is longer than [`SHORT`] is parsed and written beside the thread of all connections.

use std::future::poll_fn;
use std::pin::Pin;

use axum::body::{Body, HttpBody};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::serve::fault::Fault;
use crate::serve::limits::{BODY_TIME, MAX_JSON, SHORT};

/// A short value as an answer in JSON.
pub(in crate::serve) fn answer(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => written(text),
        Err(error) => {
            Fault::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    }
}

/// The answer in JSON that `write` makes of a value. `n_bytes` is about its length.
pub(in crate::serve) async fn sized_answer<T: Send + 'static>(
    value: T,
    n_bytes: usize,
    write: impl FnOnce(&T) -> serde_json::Result<String> + Send + 'static,
) -> Result<Response, Fault> {
    let text = sized(n_bytes, move || write(&value)).await?;
    text.map(written).map_err(|error| anyhow::Error::from(error).into())
}

/// The result of `work` on `n_bytes`, which another thread does if they are more than [`SHORT`].
pub(in crate::serve) async fn sized<T: Send + 'static>(
    n_bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    if n_bytes <= SHORT { Ok(work()) } else { beside(work).await }
}

/// An answer that is written.
pub(in crate::serve) fn written(json: String) -> Response {
    ([("content-type", "application/json")], json).into_response()
}

/// The result of `work`, which another thread does.
pub(in crate::serve) async fn beside<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Fault> {
    spawn_blocking(work).await.map_err(|error| anyhow::Error::from(error).into())
}

/// The JSON of a request of at most [`MAX_JSON`] bytes.
pub(in crate::serve) async fn json<T: DeserializeOwned + Send + 'static>(
    body: Body,
) -> Result<T, Fault> {
    parse(read(body, MAX_JSON).await?).await
}

/// A value from JSON; an error names the key and the rule.
pub(in crate::serve) async fn parse<T: DeserializeOwned + Send + 'static>(
    bytes: Vec<u8>,
) -> Result<T, Fault> {
    let parsed = sized(bytes.len(), move || serde_json::from_slice(&bytes)).await?;
    parsed.map_err(|error| Fault::bad(format!("the request is not what is expected: {error}")))
}

/// The bytes of a body.
///
/// # Errors
/// If it has more than `limit` bytes, takes longer than [`BODY_TIME`], or breaks off.
pub(in crate::serve) async fn read(body: Body, limit: usize) -> Result<Vec<u8>, Fault> {
    let seconds = BODY_TIME.as_secs();
    let late = |_| {
        let rule = format!("the body took longer than {seconds} s");
        Fault::new(StatusCode::REQUEST_TIMEOUT, rule)
    };
    timeout(BODY_TIME, collect(body, limit)).await.map_err(late)?
}

async fn collect(mut body: Body, limit: usize) -> Result<Vec<u8>, Fault> {
    let too_long = || {
        let rule = format!("the body is longer than the limit of {limit} bytes");
        Fault::new(StatusCode::PAYLOAD_TOO_LARGE, rule)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_long());
    }
    let mut bytes = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        let frame = frame.map_err(|_| Fault::bad("the body breaks off"))?;
        let data = frame.into_data().unwrap_or_default();
        if bytes.len() + data.len() > limit {
            return Err(too_long());
        }
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}
