//! The limits on what a client may send and hold. The budgets of a request, which `serve --help` names, are beside its
//! arguments.

use std::time::Duration;

/// Connections at one time. The next takes the place of the oldest that has not shown the token, or waits in the system's
/// queue.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// The age at which a connection is closed, after the answer that it is sending.
pub(super) const CONNECTION_TIME: Duration = Duration::from_hours(1);
/// Pages at one time that are followed live.
pub(super) const MAX_FOLLOWERS: usize = 64;
/// The bytes of the metrics of a run whose pages are shown. Reading them takes about eight times as much memory.
pub(super) const MAX_METRICS: u64 = 64 << 20;
/// The bytes of the samples and of the report of a run whose pages are shown.
pub(super) const MAX_RESULTS: u64 = 16 << 20;
/// The time for a request's header, and for which a connection may stay open without a request.
pub(super) const HEADER_TIME: Duration = Duration::from_secs(10);
/// The bytes of a request's header.
pub(super) const MAX_HEADER: usize = 64 << 10;
/// The time for a request's body.
pub(super) const BODY_TIME: Duration = Duration::from_secs(20);
/// The time for which a client may accept no byte of an answer.
pub(super) const WRITE_TIME: Duration = Duration::from_secs(20);
/// The bytes of a request in JSON.
pub(super) const MAX_JSON: usize = 1 << 20;
/// The bytes of a picture, and of a request in JSON that holds one.
pub(super) const MAX_PICTURE: usize = 16 << 20;
/// Bodies at one time that are longer than [`MAX_JSON`].
pub(super) const MAX_LONG_BODIES: usize = 16;
/// The tokens of a continuation.
pub(super) const MAX_NEW_TOKENS: usize = 4096;
/// The continuations of a prompt.
pub(super) const MAX_CONTINUATIONS: usize = 16;
/// The days of a forecast.
pub(super) const MAX_DAYS: usize = 100;
/// The tokens of a text whose attention maps are sent: their size grows with the square.
pub(super) const MAX_ATTENDED: usize = 128;
/// The numbers of the attention maps of a text.
pub(super) const MAX_MAP_NUMBERS: usize = 1 << 22;
/// The candidates for a mask.
pub(super) const MAX_TOP_K: usize = 1000;
/// The bytes of JSON and Base64 that the thread of all connections reads or writes itself.
pub(super) const SHORT: usize = 64 << 10;
/// The time between the beginnings of two searches of the directories, and between two looks at the files of a run
/// whose model is in use.
pub(super) const SEARCH_TIME: Duration = Duration::from_secs(1);
/// Requests that wait for a model. More are answered at once with 503.
pub(super) const MAX_WAITING: usize = 512;
/// Requests that a forward pass answers together.
pub(super) const MAX_TOGETHER: usize = 64;
