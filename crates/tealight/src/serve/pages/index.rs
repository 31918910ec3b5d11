//! `/`: all runs and models.

use axum::extract::State;
use axum::response::Response;
use maud::{Markup, html};

use super::page;
use crate::serve::app::Shared;
use crate::serve::fault::Fault;
use crate::serve::http::body::beside;
use crate::serve::http::encoded;
use crate::serve::live::list::{Line, list};

const SCRIPT: &str = include_str!("assets/index.js");

pub(in crate::serve) async fn show(State(app): State<Shared>) -> Result<Response, Fault> {
    app.catalogue.refresh().await?;
    beside(move || of_lines(&list(&app))).await
}

fn of_lines(lines: &[Line]) -> Response {
    let main = html! {
        p .dim id="state" role="status" { @if lines.is_empty() { "no runs and no models yet" } }
        table {
            thead { tr { @for name in ["name", "task", "state", "step", "try it"] { th scope="col" { (name) } } } }
            tbody id="rows" { @for line in lines { (row(line)) } }
        }
        p .dim {
            "API: " code { "POST /models/NAME" } " as Hugging Face's tasks, " code { "POST /v1/completions" }
            " as OpenAI's, " a href="/metrics" { "/metrics" } " for Prometheus."
        }
    };
    page("Runs and models", &main, SCRIPT)
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
        td { @if let Some(step) = line.step { (step) } }
        td { @if line.is_usable { a href=(format!("/play?model={name}")) { "playground" } } }
    } }
}
