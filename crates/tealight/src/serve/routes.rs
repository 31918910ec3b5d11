//! Which request goes where, and the layer around all of them.

use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::json;

use super::api::{embeddings, hf, openai, play, tei};
use super::app::{App, Shared};
use super::fault::Fault;
use super::http::body::answer;
use super::http::connections::Guest;
use super::http::security::restrict;
use super::{live, pages};

/// All routes.
pub(super) fn router(app: Shared) -> Router {
    Router::new()
        .route("/", get(pages::index::show).post(hf::only))
        .route("/events", get(live::list::follow))
        .route("/runs/{name}", get(pages::run::show))
        .route("/runs/{name}/events", get(live::run::follow))
        .route("/play", get(pages::playground::show))
        .route("/models/{name}", get(play::describe).post(hf::named))
        .route("/models/{name}/pipeline/{task}", post(hf::pipeline))
        .route("/models/{name}/tokens", post(play::tokens))
        .route("/models/{name}/tags", post(play::tags))
        .route("/models/{name}/attention", post(play::attention))
        .route("/models/{name}/continuation", post(play::continuation))
        .route("/models/{name}/forecast", post(play::forecast))
        .merge(tei::routes())
        .nest("/models/{name}", tei::routes())
        .route("/v1/models", get(openai::models))
        .route("/v1/completions", post(openai::complete))
        .route("/v1/embeddings", post(embeddings::embed))
        .route("/v1/rerank", post(embeddings::rerank))
        .route("/health", get(health))
        .route("/metrics", get(metrics))
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .layer(from_fn_with_state(app.clone(), around))
        .with_state(app)
}

/// Checks a request, answers it, writes its fault as JSON, and counts it.
async fn around(State(app): State<Shared>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let path = request.uri().path().to_owned();
    let mut response = match app.access.sign_in(&request) {
        Some(signed_in) if signed_in.status().is_redirection() => signed_in,
        Some(refusal) => closing(refusal),
        None => checked(&app, request, next).await,
    };
    if let Some(fault) = response.extensions_mut().remove::<Fault>() {
        let close = response.headers_mut().remove(header::CONNECTION);
        response = fault.answer(&path);
        if let Some(close) = close {
            response.headers_mut().insert(header::CONNECTION, close);
        }
    }
    restrict(response.headers_mut());
    app.counters.answered(response.status().as_u16(), started.elapsed());
    response
}

/// The answer to a request, if it may be sent.
async fn checked(app: &App, request: Request, next: Next) -> Response {
    if let Err(fault) = app.access.check(&request) {
        return closing(fault.into_response());
    }
    if let Some(guest) = request.extensions().get::<Guest>() {
        guest.welcome();
    }
    next.run(request).await
}

/// A refusal that ends its connection.
fn closing(mut refusal: Response) -> Response {
    refusal.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    refusal
}

async fn unknown(request: Request) -> Fault {
    Fault::missing(format!("there is no `{}`", request.uri().path()))
}

async fn other_method(request: Request) -> Fault {
    let (method, path) = (request.method(), request.uri().path());
    let rule = format!("`{path}` does not support the method {method}");
    Fault::new(StatusCode::METHOD_NOT_ALLOWED, rule)
}

async fn health() -> Response {
    answer(&json!({ "status": "ok" }))
}

async fn metrics(State(app): State<Shared>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    let gauge = |name: &str, help: &str, value: usize| {
        format!(
            "# HELP tealight_{name} {help}.\n# TYPE tealight_{name} gauge\ntealight_{name} {value}\n"
        )
    };
    let text = app.counters.text()
        + &gauge("models_loaded", "Models in memory", app.catalogue.n_loaded())
        + &gauge("followers", "Pages that are followed live", app.n_followers());
    (kind, text).into_response()
}
