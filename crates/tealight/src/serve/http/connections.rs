//! Accepts connections, and limits their number, the time of their headers and of their writes.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::timed_stream::TimedStream;
use crate::serve::limits::{HEADER_TIME, MAX_CONNECTIONS, MAX_HEADER};

/// The pause after a connection that could not be accepted, as when no file descriptor is left.
const PAUSE: Duration = Duration::from_millis(50);

/// Answers the connections of `listener` by `router`, without an end.
pub(in crate::serve) async fn accept(listener: TcpListener, router: Router) {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    while let Ok(place) = free.clone().acquire_owned().await {
        match listener.accept().await {
            Ok((stream, _)) => {
                let router = router.clone();
                tokio::spawn(async move {
                    answer(stream, router).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// Answers the requests of a connection until it ends. An error is the client's, who is gone.
async fn answer(stream: TcpStream, router: Router) {
    // Without it, the last part of a short answer may wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let stream = TokioIo::new(TimedStream::new(stream));
    let _ = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(MAX_HEADER)
        .serve_connection(stream, TowerToHyperService::new(router))
        .await;
}
