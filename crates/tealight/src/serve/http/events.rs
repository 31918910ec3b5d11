//! Server-sent events (<https://html.spec.whatwg.org/multipage/server-sent-events.html>).

use std::convert::Infallible;
use std::fmt::Display;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use serde::Serialize;
use tokio::sync::mpsc::Receiver;

/// An answer that ends when the sender does.
struct Events(Receiver<Bytes>);

impl HttpBody for Events {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// The answer that sends the events of `receiver` as they come.
pub(in crate::serve) fn answer(receiver: Receiver<Bytes>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/event-stream; charset=utf-8")];
    (kind, Body::new(Events(receiver))).into_response()
}

/// An event.
pub(in crate::serve) fn data(value: &impl Serialize) -> Bytes {
    // JSON of one line: a line break would end the field.
    let json = serde_json::to_string(value).unwrap_or_default();
    format!("data: {json}\n\n").into()
}

/// An event with an identifier, which a client that connects again sends back.
pub(in crate::serve) fn with_id(id: &impl Display, value: &impl Serialize) -> Bytes {
    [format!("id: {id}\n").as_bytes(), &data(value)].concat().into()
}

/// An event with a name.
pub(in crate::serve) fn named(name: &str, value: &impl Serialize) -> Bytes {
    [format!("event: {name}\n").as_bytes(), &data(value)].concat().into()
}
