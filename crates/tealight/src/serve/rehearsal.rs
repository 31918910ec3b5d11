//! The server without a socket, for tests that send it any bytes.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use axum::Router;
use axum::body::Body;
use axum::http::header::{AUTHORIZATION, COOKIE, HOST};
use axum::http::{HeaderName, HeaderValue, Method, Request, Uri};
use hyper::service::Service;
use hyper_util::service::TowerToHyperService;
use tealight_ops::ProductPrecision;
use tokio::runtime::{Builder, Runtime};
use tokio::time::timeout;

use super::app::App;
use super::counters::Counters;
use super::http::body::read;
use super::http::security::{Access, Token};
use super::models::catalogue::Catalogue;
use super::models::worker::Settings;
use super::routes::router;
use crate::args::serve::ANSWER_TIME;
use crate::args::shared::Weights;
use crate::system::device::DeviceName;

/// Bytes of an answer that are read; a budget limits what is known of an answer before it is computed.
const MAX_READ: usize = 64 << 20;
/// The time for which events are read: those of a run do not end.
const EVENT_TIME: Duration = Duration::from_millis(20);
/// The token, which requests without one get.
const TOKEN: &str = "the-token-of-a-rehearsal";

/// A server that answers requests given as bytes, on the thread that asks. What hyper does with bytes, and the limits on
/// connections, are not part of it.
#[derive(Debug)]
pub struct Rehearsal {
    runtime: Runtime,
    service: TowerToHyperService<Router>,
}

impl Rehearsal {
    /// A server of `paths`: runs, models, or directories of them.
    ///
    /// # Errors
    /// If there is no run, no model and no directory at a path.
    pub fn new(paths: &[PathBuf]) -> Result<Self> {
        let counters = Arc::new(Counters::default());
        let settings = Settings {
            weights: Weights { checkpoint: None, device: DeviceName::Cpu },
            precision: ProductPrecision::default(),
            counters: counters.clone(),
            memory: u64::MAX,
            answer_time: ANSWER_TIME,
            loading: Arc::default(),
        };
        let access =
            Access::new("127.0.0.1", [127, 0, 0, 1].into(), Token::Given(TOKEN.to_owned()))?;
        let app = App::new(access, Catalogue::new(paths, settings)?, counters);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        Ok(Self { runtime, service: TowerToHyperService::new(router(Arc::new(app))) })
    }

    /// The status of the answer to a request, which is given as HTTP writes it: `POST /path`, a line for each header, an
    /// empty line, and the body. `Host` and the token are added unless a header is there in their place. `None` if the
    /// bytes are no such request.
    ///
    /// # Errors
    /// If the answer breaks off or is longer than 64 MiB.
    pub fn answer(&self, bytes: &[u8]) -> Result<Option<u16>> {
        let Some(request) = parse(bytes) else { return Ok(None) };
        self.runtime.block_on(async {
            let Ok(response) = self.service.call(request).await;
            let status = response.status().as_u16();
            let are_events = are_events(response.headers().get("content-type"));
            let body = read(response.into_body(), MAX_READ);
            if are_events {
                let _ = timeout(EVENT_TIME, body).await;
            } else {
                body.await.map_err(|fault| anyhow!(fault.rule))?;
            }
            Ok(Some(status))
        })
    }
}

fn are_events(kind: Option<&HeaderValue>) -> bool {
    kind.is_some_and(|kind| kind.as_bytes().starts_with(b"text/event-stream"))
}

/// The request that `bytes` state, if they state one.
fn parse(bytes: &[u8]) -> Option<Request<Body>> {
    let (first, mut rest) = line(bytes)?;
    let (method, path) = first.split_at(first.iter().position(|byte| *byte == b' ')?);
    let mut request = Request::builder()
        .method(Method::from_bytes(method).ok()?)
        .uri(Uri::try_from(&path[1..]).ok()?);
    loop {
        let (header, after) = line(rest)?;
        rest = after;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_at(header.iter().position(|byte| *byte == b':')?);
        let name = HeaderName::from_bytes(name).ok()?;
        let value = HeaderValue::from_bytes(value[1..].trim_ascii()).ok()?;
        request = request.header(name, value);
    }
    if !request.headers_ref()?.contains_key(HOST) {
        request = request.header(HOST, "127.0.0.1");
    }
    let has = |header| request.headers_ref().is_some_and(|headers| headers.contains_key(header));
    if !has(AUTHORIZATION) && !has(COOKIE) {
        request = request.header(AUTHORIZATION, format!("Bearer {TOKEN}"));
    }
    request.body(Body::from(rest.to_vec())).ok()
}

/// The first line of `bytes`, and what follows it.
fn line(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = bytes.iter().position(|byte| *byte == b'\n')?;
    Some((bytes[..end].trim_ascii_end(), &bytes[end + 1..]))
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::fs;
    use std::path::Path;

    use super::*;

    /// The seeds of the fuzz target `http`, and everything that it found. A refusal is an answer; a status of 500 is a
    /// panic or another mistake of the server.
    #[test]
    fn no_request_that_was_found_is_a_fault_of_the_server() -> Result<(), Box<dyn Error>> {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let models = crates.join("tealight-train/tests/golden/models");
        let names = ["bert", "bert_ner", "bert_pair_cls", "gpt2", "vit"];
        let run = crates.join("tealight/tests/formats/v1/tiny");
        let paths: Vec<_> = names.map(|name| models.join(name)).into_iter().chain([run]).collect();
        let server = Rehearsal::new(&paths)?;
        let mut n_seeds = 0;
        for entry in fs::read_dir(crates.join("../fuzz/corpus/http"))? {
            let path = entry?.path();
            let bytes = fs::read(&path)?;
            for end in [bytes.len(), bytes.len() - bytes.len() / 9, bytes.len() / 2] {
                let status = server.answer(&bytes[..end])?;
                assert_ne!(status, Some(500), "{} until {end}", path.display());
            }
            // What the target finds is named by its digest.
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.len() != 40 {
                let status = server.answer(&bytes)?;
                let is_answered = match &*name {
                    "session" => status == Some(303),
                    "stranger" => status == Some(401),
                    // None of these models ranks.
                    "rerank" | "v1_rerank" => status == Some(424),
                    _ => status == Some(200),
                };
                assert!(is_answered, "{name}: {status:?}");
                n_seeds += 1;
            }
        }
        assert!(n_seeds > 25, "{n_seeds}");
        Ok(())
    }
}
