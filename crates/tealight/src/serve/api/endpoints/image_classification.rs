//! As the pipeline `image-classification`: a list of classes of a picture.

use std::fmt;

use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::image_classification::{ImageClassification, Request, TOP_K};

use super::{best, n_bytes, question};
use crate::serve::api::check;
use crate::serve::fault::Fault;
use crate::serve::http::body;
use crate::serve::limits::{MAX_PICTURE, MAX_TOP_K};
use crate::serve::models::worker::Worker;

pub(in crate::serve::api) const NAME: &str = ImageClassification::NAME;
/// The text of a picture is 4/3 as long as its bytes.
pub(super) const MAX_BODY: usize = MAX_PICTURE / 3 * 4;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    top_k: usize,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { top_k: TOP_K }
    }
}

/// The bytes of a picture, which are Base64 in JSON.
struct Picture(Vec<u8>);

impl<'de> Deserialize<'de> for Picture {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(Base64)
    }
}

struct Base64;

impl Visitor<'_> for Base64 {
    type Value = Picture;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("the bytes of a PNG or JPEG in Base64")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Picture, E> {
        let decoded = BASE64_STANDARD.decode(text).map(Picture);
        decoded.map_err(|error| E::custom(format!("not Base64: {error}")))
    }
}

/// A picture in Base64.
pub(super) async fn answer(worker: &Worker, body: Vec<u8>) -> Result<Response, Fault> {
    let (Picture(bytes), Parameters { top_k }) = question(body).await?;
    let top_k = check::number("top_k", top_k, MAX_TOP_K)?;
    classify(worker, bytes, top_k).await
}

/// The bytes of a picture.
pub(in crate::serve::api) async fn classify(
    worker: &Worker,
    picture: Vec<u8>,
    top_k: usize,
) -> Result<Response, Fault> {
    let classified = worker.ask::<ImageClassification>(Request::Bytes(picture)).await?;
    let scores = best(classified, top_k);
    let n_bytes = n_bytes(&scores);
    body::sized_answer(scores, n_bytes, serde_json::to_string).await
}
