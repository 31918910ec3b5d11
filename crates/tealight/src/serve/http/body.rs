//! Reads the bodies of requests, within a time and a size.

use std::future::poll_fn;
use std::pin::Pin;

use axum::body::{Body, HttpBody};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::serve::fault::Fault;
use crate::serve::limits::{BODY_TIME, MAX_JSON};

/// A value as an answer in JSON.
pub(in crate::serve) fn answer(value: &impl Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(text) => ([("content-type", "application/json")], text).into_response(),
        Err(error) => {
            Fault::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response()
        }
    }
}

/// The JSON of a request of at most [`MAX_JSON`] bytes.
pub(in crate::serve) async fn json<T: DeserializeOwned>(body: Body) -> Result<T, Fault> {
    parse(&read(body, MAX_JSON).await?)
}

/// A value from JSON; an error names the key and the rule.
pub(in crate::serve) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Fault> {
    let fault = |error| Fault::bad(format!("the request is not what is expected: {error}"));
    serde_json::from_slice(bytes).map_err(fault)
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
