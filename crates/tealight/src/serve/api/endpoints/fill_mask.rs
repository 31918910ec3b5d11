//! As the pipeline `fill-mask`: a list of candidates, a list of lists for several masks, a list of those for several
//! texts.

use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value};
use tealight_train::inference::fill_mask::as_pipeline;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::fill_mask::{FillMask, Request};

use super::{parameters, texts};
use crate::serve::api::check::{self, OneOrSeveral};
use crate::serve::fault::Fault;
use crate::serve::http::body;
use crate::serve::limits::{MAX_JSON, MAX_TOP_K};
use crate::serve::models::worker::Worker;

pub(super) const NAME: &str = FillMask::NAME;
pub(super) const MAX_BODY: usize = MAX_JSON;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    /// Candidates of a mask, by default as many as in the pipeline of transformers.
    #[serde(default = "top_k")]
    top_k: usize,
    targets: Option<OneOrSeveral>,
}

fn top_k() -> usize {
    5
}

pub(super) async fn answer(
    worker: &Worker,
    inputs: Value,
    given: Map<String, Value>,
) -> Result<Response, Fault> {
    let Parameters { top_k, targets } = parameters(given)?;
    let top_k = check::number("top_k", top_k, MAX_TOP_K)?;
    let targets = targets.map(OneOrSeveral::into_list);
    if let Some(words) = &targets {
        check::texts(words.iter().map(String::as_str))?;
    }
    let (texts, _) = texts(inputs)?;
    let filled = worker.ask::<FillMask>(Request { texts, top_k, targets }).await?;
    Ok(body::answer(&as_pipeline(&filled)))
}
