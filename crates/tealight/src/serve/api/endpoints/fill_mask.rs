//! As the pipeline `fill-mask`: a list of candidates, a list of lists for several masks, a list of those for several
//! texts.

use axum::response::Response;
use serde::Deserialize;
use tealight_train::inference::fill_mask::{Budget, Candidate, as_pipeline};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::fill_mask::{FillMask, Request};

use super::{OneOrList, question};
use crate::args::serve::{MAX_ANSWER, MAX_CANDIDATES};
use crate::serve::api::check;
use crate::serve::fault::Fault;
use crate::serve::http::body;
use crate::serve::limits::{MAX_JSON, MAX_TOP_K};
use crate::serve::models::worker::Worker;

pub(super) const NAME: &str = FillMask::NAME;
pub(super) const MAX_BODY: usize = MAX_JSON;

const BUDGET: Budget = Budget { candidates: MAX_CANDIDATES, bytes: MAX_ANSWER };
/// The length of a candidate in JSON without its sequence, in bytes.
const CANDIDATE_BYTES: usize = 96;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    top_k: usize,
    targets: Option<OneOrList<String>>,
}

impl Default for Parameters {
    /// As many candidates of a mask as in the pipeline of transformers.
    fn default() -> Self {
        Self { top_k: 5, targets: None }
    }
}

pub(super) async fn answer(worker: &Worker, body: Vec<u8>) -> Result<Response, Fault> {
    let (OneOrList { list: texts, .. }, Parameters { top_k, targets }) = question(body).await?;
    check::texts(texts.iter().map(String::as_str))?;
    let top_k = check::number("top_k", top_k, MAX_TOP_K)?;
    let targets = targets.map(|targets| targets.list);
    if let Some(words) = &targets {
        check::texts(words.iter().map(String::as_str))?;
    }
    let request = Request { texts, top_k, targets, budget: Some(BUDGET) };
    let filled = worker.ask::<FillMask>(request).await?;
    let candidates = filled.iter().flatten().flatten();
    let n_bytes = candidates.map(|one: &Candidate| one.sequence.len() + CANDIDATE_BYTES).sum();
    body::sized_answer(filled, n_bytes, |filled| serde_json::to_string(&as_pipeline(filled))).await
}
