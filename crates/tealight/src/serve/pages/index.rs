//! `/`: all runs and models.

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};
use tealight_train::task::table::thousands;

use super::page;
use crate::serve::app::Shared;
use crate::serve::fault::Fault;
use crate::serve::http::body::beside;
use crate::serve::http::encoded;
use crate::serve::live::list::{Line, Metric, list};

const SCRIPT: &str = include_str!("assets/index.js");
const COLUMNS: [&str; 7] = ["name", "task", "state", "step", "metric", "started (UTC)", "try it"];

pub(in crate::serve) async fn show(State(app): State<Shared>) -> Result<Response, Fault> {
    app.catalogue.refresh().await?;
    beside(move || of_lines(&list(&app))).await
}

fn of_lines(lines: &[Line]) -> Response {
    let main = html! {
        p .dim id="state" role="status" { @if lines.is_empty() { "no runs and no models yet" } }
        div .scroll { table {
            thead { tr { @for name in COLUMNS { th scope="col" { (name) } } } }
            tbody id="rows" { @for line in lines { (row(line)) } }
        } }
        p .dim {
            "API: " code { "POST /models/NAME" } " as Hugging Face's tasks, " code { "POST /v1/completions" }
            " as OpenAI's, " a href="/metrics" { "/metrics" } " for Prometheus."
        }
    };
    page("Runs and models", &main, SCRIPT)
}

/// `2026-11-27 00:12`, of a time as manifests have it.
fn minute(time: &str) -> String {
    time.get(..16).unwrap_or(time).replace('T', " ")
}

/// As the script writes it when something has changed.
fn row(line: &Line) -> Markup {
    let name = encoded(&line.name);
    html! { tr {
        th scope="row" {
            @if line.is_run { a href=(format!("/runs/{name}")) { (line.name) } } @else { (line.name) }
        }
        td { (line.task.as_deref().unwrap_or_default()) }
        td { (line.state.unwrap_or("model")) }
        td { @if let Some(step) = line.step { (thousands(step)) } }
        td { @if let Some(Metric { name, value }) = &line.metric { (name) " " (format!("{value:.4}")) } }
        td { @if let Some(started) = &line.started { time datetime=(started) { (minute(started)) } } }
        td { @if line.is_usable { a href=(format!("/play?model={name}")) { "playground" } } }
    } }
}
