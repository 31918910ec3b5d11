//! A vector for each text, if the model's folder says how to pool; else, as the pipeline `feature-extraction`, the
//! hidden states of the tokens: `[1][seq_len][d_model]` for each text.

use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value};
use tealight_train::inference::embed::to_unit_length;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::feature_extraction::{FeatureExtraction, Request};

use super::{parameters, texts};
use crate::serve::fault::Fault;
use crate::serve::http::body;
use crate::serve::limits::MAX_JSON;
use crate::serve::models::loaded::Loaded;
use crate::serve::models::worker::Worker;

pub(super) const NAME: &str = FeatureExtraction::NAME;
pub(super) const MAX_BODY: usize = MAX_JSON;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    normalize: Option<bool>,
    prompt_name: Option<String>,
}

/// The hidden states of the tokens of a text, `[1][seq_len][d_model]`.
type States = [Vec<Vec<f32>>; 1];

pub(super) async fn answer(
    worker: &Worker,
    inputs: Value,
    given: Map<String, Value>,
) -> Result<Response, Fault> {
    let Parameters { normalize, prompt_name: prompt } = parameters(given)?;
    let (texts, is_list) = texts(inputs)?;
    let has_parameters = normalize.is_some() || prompt.is_some();
    let (texts, states) = worker
        .run(move |model| {
            let states = states(model, &texts, has_parameters)?;
            Ok((texts, states))
        })
        .await?;
    if let Some(states) = states {
        return Ok(if is_list { body::answer(&states) } else { body::answer(&states[0]) });
    }
    let embedded = worker.ask::<FeatureExtraction>(Request { texts, prompt }).await?;
    let mut vectors: Vec<Vec<f32>> = embedded.rows().map(<[f32]>::to_vec).collect();
    if normalize == Some(true) {
        for vector in &mut vectors {
            to_unit_length(vector);
        }
    }
    Ok(if is_list { body::answer(&vectors) } else { body::answer(&vectors[0]) })
}

/// The hidden states of texts; `None` if the model's folder says how to pool them.
fn states(
    model: &Loaded,
    texts: &[String],
    has_parameters: bool,
) -> Result<Option<Vec<States>>, Fault> {
    let pipeline = model.pipeline::<FeatureExtraction>()?;
    if pipeline.stated().is_stated {
        return Ok(None);
    }
    if has_parameters {
        let rule = "`normalize` and `prompt_name` are for models of sentence-transformers";
        return Err(Fault::bad(rule));
    }
    let states = pipeline.embedder().states(texts)?;
    Ok(Some(states.into_iter().map(|one| [one]).collect()))
}
