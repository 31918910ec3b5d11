//! `/runs/NAME`: the page of `tealight report`, which goes on.

use axum::extract::{Path, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use tokio::task::spawn_blocking;

use crate::report::page::{Form, page, policy};
use crate::report::read::RunData;
use crate::serve::app::{Shared, check_size};
use crate::serve::fault::Fault;

/// Runs after the scripts of the page.
const FORM: Form<'_> = Form::Live { script: include_str!("assets/run.js") };

pub(in crate::serve) async fn show(
    State(app): State<Shared>,
    Path(name): Path<String>,
) -> Result<Response, Fault> {
    let item = app.catalogue.run(&name).await?;
    let turn = app.turn_to_read().await?;
    let made = spawn_blocking(move || {
        let _turn = turn;
        check_size(&item.path)?;
        let mut run = RunData::read(&item.path)?;
        run.name = item.name;
        page(&[run], None, FORM)
    });
    let text = made.await.map_err(anyhow::Error::from).flatten()?;
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8".to_owned()),
        (header::CONTENT_SECURITY_POLICY, policy(FORM)),
    ];
    Ok((headers, text).into_response())
}
