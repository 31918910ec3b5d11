//! As the pipeline `image-classification`: a list of classes of a picture.

use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::{Map, Value};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::image_classification::{ImageClassification, Request, TOP_K};

use super::{best, parameters};
use crate::serve::api::check;
use crate::serve::fault::Fault;
use crate::serve::http::body;
use crate::serve::limits::{MAX_PICTURE, MAX_TOP_K};
use crate::serve::models::worker::Worker;

pub(super) const NAME: &str = ImageClassification::NAME;
/// The text of a picture is 4/3 as long as its bytes.
pub(super) const MAX_BODY: usize = MAX_PICTURE / 3 * 4;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    #[serde(default = "top_k")]
    top_k: usize,
}

fn top_k() -> usize {
    TOP_K
}

/// A picture in Base64.
pub(super) async fn answer(
    worker: &Worker,
    inputs: Value,
    given: Map<String, Value>,
) -> Result<Response, Fault> {
    let Parameters { top_k } = parameters(given)?;
    let top_k = check::number("top_k", top_k, MAX_TOP_K)?;
    let bytes = inputs.as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
    let bytes =
        bytes.ok_or_else(|| Fault::bad("`inputs` must be the bytes of a PNG or JPEG in Base64"))?;
    classify(worker, bytes, top_k).await
}

/// The bytes of a picture.
pub(in crate::serve::api) async fn classify(
    worker: &Worker,
    picture: Vec<u8>,
    top_k: usize,
) -> Result<Response, Fault> {
    let classified = worker.ask::<ImageClassification>(Request::Bytes(picture)).await?;
    Ok(body::answer(&best(classified, top_k)))
}
