//! Accepts connections, and limits their number, their age, the time of their headers and of their writes.
//!
//! If all places are taken, a connection that has shown no right to be answered gives its place to the next: the oldest
//! of them. Strangers thus compete with each other alone. A limit for each address would not do, because behind a proxy
//! or a tunnel all clients have one.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use super::timed_stream::TimedStream;
use crate::serve::limits::{CONNECTION_TIME, HEADER_TIME, MAX_CONNECTIONS, MAX_HEADER};

/// The pause after a connection that could not be accepted, as when no file descriptor is left.
const PAUSE: Duration = Duration::from_millis(50);

/// Answers the connections of `listener` by `router`, without an end.
pub(in crate::serve) async fn accept(listener: TcpListener, router: Router) {
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let strangers = Arc::new(Strangers::default());
    let mut number = 0;
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            sleep(PAUSE).await;
            continue;
        };
        if free.available_permits() == 0 {
            strangers.dismiss_oldest();
        }
        let Ok(place) = free.clone().acquire_owned().await else { return };
        number += 1;
        let guest = Guest { number, strangers: strangers.clone() };
        let (router, leaving) = (router.clone(), Leaving(guest.clone()));
        let task = tokio::spawn(async move {
            answer(stream, router, &guest).await;
            drop((leaving, place));
        });
        strangers.table().insert(number, task.abort_handle());
    }
}

/// Answers the requests of a connection until it ends. An error is the client's, who is gone.
async fn answer(stream: TcpStream, router: Router, guest: &Guest) {
    // Without it, the last part of a short answer may wait for the client's acknowledgement.
    let _ = stream.set_nodelay(true);
    let stream = TokioIo::new(TimedStream::new(stream));
    let router = TowerToHyperService::new(router);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(guest.clone());
        router.call(request)
    });
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIME)
            .max_buf_size(MAX_HEADER)
            .serve_connection(stream, service)
    );
    if timeout(CONNECTION_TIME, connection.as_mut()).await.is_err() {
        // A request that is being answered is the last.
        connection.as_mut().graceful_shutdown();
        let _ = connection.await;
    }
}

/// The client of a connection, as its requests carry it.
#[derive(Clone)]
pub(in crate::serve) struct Guest {
    number: u64,
    strangers: Arc<Strangers>,
}

impl Guest {
    /// Says that the client has sent a request that it may send: it keeps its place.
    pub(in crate::serve) fn welcome(&self) {
        self.strangers.table().remove(&self.number);
    }
}

/// Forgets a connection when it ends.
struct Leaving(Guest);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.welcome();
    }
}

/// The connections by number, the oldest first, that have not sent a request that they may send.
#[derive(Default)]
struct Strangers(Mutex<BTreeMap<u64, AbortHandle>>);

impl Strangers {
    fn dismiss_oldest(&self) {
        let oldest = self.table().pop_first();
        if let Some((_, task)) = oldest {
            task.abort();
        }
    }

    fn table(&self) -> MutexGuard<'_, BTreeMap<u64, AbortHandle>> {
        // Each change of the table is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
