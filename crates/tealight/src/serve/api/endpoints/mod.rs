//! The tasks of Hugging Face's schema: a file for each, and its name in the list below.

mod feature_extraction;
mod fill_mask;
pub(super) mod image_classification;
mod text_classification;

use axum::response::Response;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tealight_train::inference::labels::{Classified, Score};

use super::check;
use crate::serve::fault::Fault;
use crate::serve::limits::MAX_JSON;
use crate::serve::models::worker::Worker;

/// Defines [`answer`] and [`max_body`] from a list of modules, each with `NAME`, `MAX_BODY` and `answer`.
macro_rules! endpoints {
    ($($module:ident),+ $(,)?) => {
        /// The names of all tasks.
        const NAMES: &[&str] = &[$($module::NAME),+];

        /// The bytes of a request for a task.
        pub(super) fn max_body(task: &str) -> usize {
            match task {
                $($module::NAME => $module::MAX_BODY,)+
                _ => MAX_JSON,
            }
        }

        /// The answer of a model for a task.
        pub(super) async fn answer(
            task: &str,
            worker: &Worker,
            inputs: Value,
            parameters: Map<String, Value>,
        ) -> Result<Response, Fault> {
            match task {
                $($module::NAME => $module::answer(worker, inputs, parameters).await,)+
                other => Err(unknown(other)),
            }
        }
    };
}

endpoints! {
    fill_mask,
    text_classification,
    feature_extraction,
    image_classification,
}

fn unknown(task: &str) -> Fault {
    let (last, others) = NAMES.split_last().expect("invariant: there are tasks");
    let names = format!("{} and {last}", others.join(", "));
    Fault::bad(format!(
        "the task \"{task}\" is not one of {names}; `/v1/completions` continues texts"
    ))
}

/// The parameters of a task; one that it does not have is refused by name.
fn parameters<T: DeserializeOwned>(parameters: Map<String, Value>) -> Result<T, Fault> {
    serde_json::from_value(Value::Object(parameters))
        .map_err(|error| Fault::bad(format!("`parameters`: {error}")))
}

/// One text or several, and whether they came as a list.
fn texts(inputs: Value) -> Result<(Vec<String>, bool), Fault> {
    let rule = |_| Fault::bad("`inputs` must be a text or a list of texts");
    let is_list = inputs.is_array();
    let list = if is_list { inputs } else { json!([inputs]) };
    let texts: Vec<String> = serde_json::from_value(list).map_err(rule)?;
    check::texts(texts.iter().map(String::as_str))?;
    Ok((texts, is_list))
}

fn best(classified: Classified, top_k: usize) -> Vec<Score> {
    classified.scores.into_iter().take(top_k).collect()
}
