//! `/`: all runs and models.

use axum::response::Response;
use maud::html;

use super::page;

const SCRIPT: &str = include_str!("assets/index.js");

pub(in crate::serve) async fn show() -> Response {
    let main = html! {
        p .dim id="state" role="status" { "loading …" }
        table {
            thead { tr { @for name in ["name", "task", "state", "step", ""] { th scope="col" { (name) } } } }
            tbody id="rows" {}
        }
        p .dim {
            "API: " code { "POST /models/NAME" } " as Hugging Face's tasks, " code { "POST /v1/completions" }
            " as OpenAI's, " a href="/metrics" { "/metrics" } " for Prometheus."
        }
    };
    page("Runs and models", &main, SCRIPT)
}
