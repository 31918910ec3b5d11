//! A vector for each text, if the model's folder says how to pool; else, as the pipeline `feature-extraction`, the
//! hidden states of the tokens: `[1][seq_len][d_model]` for each text.

use axum::response::Response;
use serde::{Deserialize, Serialize};
use tealight_train::inference::embed::to_unit_length;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::feature_extraction::{FeatureExtraction, Request};

use super::{OneOrList, question};
use crate::args::serve::MAX_ANSWER;
use crate::serve::api::check;
use crate::serve::fault::Fault;
use crate::serve::http::body;
use crate::serve::limits::MAX_JSON;
use crate::serve::models::loaded::Loaded;
use crate::serve::models::worker::Worker;

pub(super) const NAME: &str = FeatureExtraction::NAME;
pub(super) const MAX_BODY: usize = MAX_JSON;

/// The length of a number in JSON, in bytes.
const NUMBER_BYTES: usize = 12;
const MAX_NUMBERS: usize = MAX_ANSWER / NUMBER_BYTES;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    normalize: Option<bool>,
    prompt_name: Option<String>,
}

/// The hidden states of the tokens of a text, `[1][seq_len][d_model]`.
type States = [Vec<Vec<f32>>; 1];

pub(super) async fn answer(worker: &Worker, body: Vec<u8>) -> Result<Response, Fault> {
    let (inputs, Parameters { normalize, prompt_name: prompt }) = question(body).await?;
    let OneOrList { list: texts, is_list } = inputs;
    check::texts(texts.iter().map(String::as_str))?;
    let has_parameters = normalize.is_some() || prompt.is_some();
    let (texts, json) = worker
        .run(move |model| {
            let states = states(model, &texts, has_parameters)?;
            // It is long, and therefore written here.
            let json = states.map(|states| written(&states, is_list)).transpose();
            Ok((texts, json.map_err(anyhow::Error::from)?))
        })
        .await?;
    if let Some(json) = json {
        return Ok(body::written(json));
    }
    let embedded = worker.ask::<FeatureExtraction>(Request { texts, prompt }).await?;
    let mut vectors: Vec<Vec<f32>> = embedded.rows().map(<[f32]>::to_vec).collect();
    if normalize == Some(true) {
        for vector in &mut vectors {
            to_unit_length(vector);
        }
    }
    let n_bytes = vectors.iter().map(Vec::len).sum::<usize>() * NUMBER_BYTES;
    body::sized_answer(vectors, n_bytes, move |vectors| written(vectors, is_list)).await
}

/// What belongs to each text, or to the only one.
fn written<T: Serialize>(of_texts: &[T], is_list: bool) -> serde_json::Result<String> {
    if is_list { serde_json::to_string(of_texts) } else { serde_json::to_string(&of_texts[0]) }
}

/// The hidden states of texts; `None` if the model's folder says how to pool them.
fn states(
    model: &Loaded,
    texts: &[String],
    has_parameters: bool,
) -> Result<Option<Vec<States>>, Fault> {
    let pipeline = model.pipeline::<FeatureExtraction>()?;
    if pipeline.stated().is_stated {
        let (n_texts, dim) = (texts.len(), pipeline.embedder().dim());
        if n_texts * dim > MAX_NUMBERS {
            return Err(Fault::bad(format!(
                "{n_texts} vectors of {dim} numbers exceed the limit of {MAX_NUMBERS} numbers: send fewer texts"
            )));
        }
        return Ok(None);
    }
    if has_parameters {
        let rule = "`normalize` and `prompt_name` are for models of sentence-transformers";
        return Err(Fault::bad(rule));
    }
    let states = pipeline.embedder().states(texts, MAX_NUMBERS)?;
    Ok(Some(states.into_iter().map(|one| [one]).collect()))
}
