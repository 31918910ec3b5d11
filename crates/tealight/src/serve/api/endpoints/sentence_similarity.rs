//! The cosines of a text with others: `{"inputs": {"source_sentence": "a text", "sentences": ["texts"]}}`.

use axum::response::Response;

use super::question;
use crate::serve::api::tei::{self, Parameters, Sentences};
use crate::serve::fault::Fault;
use crate::serve::limits::MAX_JSON;
use crate::serve::models::worker::Worker;

pub(super) const NAME: &str = "sentence-similarity";
pub(super) const MAX_BODY: usize = MAX_JSON;

pub(super) async fn answer(worker: &Worker, body: Vec<u8>) -> Result<Response, Fault> {
    let (sentences, parameters): (Sentences, Parameters) = question(body).await?;
    // The hosted service truncates texts.
    tei::compare(worker, sentences, parameters.comparison(true)?).await
}
