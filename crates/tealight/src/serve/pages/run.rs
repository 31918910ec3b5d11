//! `/runs/NAME`: a run, live.

use axum::extract::{Path, State};
use axum::response::Response;
use maud::html;

use super::page;
use crate::serve::app::Shared;
use crate::serve::fault::Fault;

const SCRIPT: &str = include_str!("assets/run.js");

pub(in crate::serve) async fn show(
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Response, Fault> {
    let item = app.catalogue.run(&name)?;
    let main = html! {
        p {
            strong id="status" role="status" { "loading …" }
            " · " span id="last" {}
        }
        div .charts id="charts" {}
    };
    Ok(page(&item.name, &main, SCRIPT))
}
