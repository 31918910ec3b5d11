//! As the hosted service: a list of lists of labels, one for each text, also for a single one.

use axum::response::Response;
use serde::Deserialize;
use serde_json::{Map, Value};
use tealight_train::inference::labels::Score;
use tealight_train::inference::text_classifier::Text;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::text_classification::TextClassification;

use super::{best, parameters};
use crate::serve::api::check;
use crate::serve::fault::Fault;
use crate::serve::http::body;
use crate::serve::limits::{MAX_JSON, MAX_TOP_K};
use crate::serve::models::worker::Worker;

pub(super) const NAME: &str = TextClassification::NAME;
pub(super) const MAX_BODY: usize = MAX_JSON;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Parameters {
    top_k: Option<usize>,
}

pub(super) async fn answer(
    worker: &Worker,
    inputs: Value,
    given: Map<String, Value>,
) -> Result<Response, Fault> {
    let Parameters { top_k } = parameters(given)?;
    let top_k = check::number("top_k", top_k.unwrap_or(MAX_TOP_K), MAX_TOP_K)?;
    let classified = worker.ask::<TextClassification>(pairs(inputs)?).await?;
    let scores: Vec<Vec<Score>> = classified.into_iter().map(|one| best(one, top_k)).collect();
    Ok(body::answer(&scores))
}

/// Texts, or objects with `text` and `text_pair`.
fn pairs(inputs: Value) -> Result<Vec<Text>, Fault> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Pair {
        text: String,
        text_pair: Option<String>,
    }
    let list = match inputs {
        Value::Array(list) => list,
        one => vec![one],
    };
    let pair = |value: Value| match value {
        Value::String(text) => Ok(Text { text, text_pair: None }),
        object => {
            serde_json::from_value(object).map(|Pair { text, text_pair }| Text { text, text_pair })
        }
    };
    let rule = |_| Fault::bad("`inputs` must be texts, or objects with `text` and `text_pair`");
    let texts: Vec<Text> = list.into_iter().map(pair).collect::<Result<_, _>>().map_err(rule)?;
    check::texts(texts.iter().map(|text| text.text.as_str()))?;
    let others: Vec<&str> = texts.iter().filter_map(|text| text.text_pair.as_deref()).collect();
    if !others.is_empty() {
        check::texts(others.into_iter())?;
    }
    Ok(texts)
}
