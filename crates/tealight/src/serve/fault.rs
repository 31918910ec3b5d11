//! Errors as answers: JSON that names the rule.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;

/// Why a request is refused.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) status: StatusCode,
    pub(super) rule: String,
}

impl Fault {
    pub(super) fn new(status: StatusCode, rule: impl Into<String>) -> Self {
        Self { status, rule: rule.into() }
    }

    /// The request breaks a rule.
    pub(super) fn bad(rule: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, rule)
    }

    /// There is nothing of that name.
    pub(super) fn missing(rule: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, rule)
    }

    /// The server cannot answer now.
    pub(super) fn busy(rule: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, rule)
    }

    /// The answer to a request for `path`, in the format of the API that the path belongs to.
    pub(super) fn answer(&self, path: &str) -> Response {
        let body = if path.starts_with("/v1/") {
            let kind = if self.status.is_server_error() {
                "server_error"
            } else {
                "invalid_request_error"
            };
            json!({ "error": { "message": self.rule, "type": kind, "param": null, "code": null } })
        } else {
            json!({ "error": self.rule })
        };
        let json = [(header::CONTENT_TYPE, "application/json")];
        (self.status, json, body.to_string()).into_response()
    }
}

/// Carries the fault to the outermost layer, which knows the path and writes the answer.
impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

/// An error of a model: the client's if its text or number breaks a rule, else ours.
impl From<tealight_train::Error> for Fault {
    fn from(error: tealight_train::Error) -> Self {
        use tealight_train::Error::{Config, Input, NoTokenizer, Source, Text, Tokenize};
        let status = match error {
            Text { .. } | Input(_) | Config(_) | Tokenize(_) | Source(_) | NoTokenizer(_) => {
                StatusCode::BAD_REQUEST
            }
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, message(error))
    }
}

/// The message of an error with its causes, without the backtrace that Candle adds under `RUST_BACKTRACE`.
fn message(error: tealight_train::Error) -> String {
    match error {
        tealight_train::Error::Candle(candle_core::Error::WithBacktrace { inner, .. }) => {
            inner.to_string()
        }
        other => format!("{:#}", anyhow::Error::from(other)),
    }
}

impl From<anyhow::Error> for Fault {
    fn from(error: anyhow::Error) -> Self {
        match error.downcast::<tealight_train::Error>() {
            Ok(error) => error.into(),
            Err(error) => Self::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")),
        }
    }
}
