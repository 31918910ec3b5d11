//! The tasks of Hugging Face's schema: a file for each, and its name in the list below.

mod feature_extraction;
mod fill_mask;
pub(super) mod image_classification;
mod sentence_similarity;
mod text_classification;
mod token_classification;

use axum::response::Response;
use serde::de::{DeserializeOwned, Error, IgnoredAny};
use serde::{Deserialize, Deserializer};
use tealight_train::inference::labels::{Classified, Score};

use super::one_or_list::{Item, OneOrList};
use crate::serve::fault::Fault;
use crate::serve::http::body::parse;
use crate::serve::limits::MAX_JSON;
use crate::serve::models::loaded::other_task;
use crate::serve::models::worker::Worker;

/// Defines [`answer`] and [`max_body`] from a list of modules, each with `NAME`, `MAX_BODY` and `answer`.
macro_rules! endpoints {
    ($($module:ident),+ $(,)?) => {
        /// The names of all tasks.
        const NAMES: &[&str] = &[$($module::NAME),+];

        /// The bytes of a request for a task of a model of the task `own`.
        ///
        /// # Errors
        /// If there is no such task, or if requests for it are long and the model has another.
        pub(super) fn max_body(task: &str, own: &str) -> Result<usize, Fault> {
            let max = match task {
                $($module::NAME => $module::MAX_BODY,)+
                other => return Err(unknown(other)),
            };
            if max > MAX_JSON && task != own { Err(other_task(own, task)) } else { Ok(max) }
        }

        /// The answer of a model for a task.
        pub(super) async fn answer(
            task: &str,
            worker: &Worker,
            body: Vec<u8>,
        ) -> Result<Response, Fault> {
            match task {
                $($module::NAME => $module::answer(worker, body).await,)+
                other => Err(unknown(other)),
            }
        }
    };
}

endpoints! {
    fill_mask,
    text_classification,
    token_classification,
    feature_extraction,
    sentence_similarity,
    image_classification,
}

fn unknown(task: &str) -> Fault {
    let (last, others) = NAMES.split_last().expect("invariant: there are tasks");
    let names = format!("{} and {last}", others.join(", "));
    Fault::bad(format!(
        "the task \"{task}\" is not one of {names}; `/v1/completions` continues texts"
    ))
}

/// The body of a request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question<I, P> {
    #[serde(deserialize_with = "inputs", bound(deserialize = "I: Deserialize<'de>"))]
    inputs: I,
    #[serde(default, bound(deserialize = "P: Default + Deserialize<'de>"))]
    parameters: P,
    /// Of the hosted service: whether it may answer from a cache, or waits for a model. Without meaning here.
    #[serde(default, rename = "options")]
    _options: Option<IgnoredAny>,
}

/// The question of a request; a parameter that the task does not have is refused by name.
async fn question<I, P>(body: Vec<u8>) -> Result<(I, P), Fault>
where
    I: DeserializeOwned + Send + 'static,
    P: DeserializeOwned + Default + Send + 'static,
{
    let Question { inputs, parameters, .. } = parse(body).await?;
    Ok((inputs, parameters))
}

/// The value of `inputs`, which an error names.
fn inputs<'de, D: Deserializer<'de>, I: Deserialize<'de>>(deserializer: D) -> Result<I, D::Error> {
    I::deserialize(deserializer).map_err(|error| D::Error::custom(format!("`inputs`: {error}")))
}

/// The length of a label with its score in JSON without the label's name, in bytes.
const SCORE_BYTES: usize = 66;

/// About the length of `scores` in JSON, in bytes.
fn n_bytes<'a>(scores: impl IntoIterator<Item = &'a Score>) -> usize {
    scores.into_iter().map(|one| one.label.len() + SCORE_BYTES).sum()
}

fn best(classified: Classified, top_k: usize) -> Vec<Score> {
    classified.scores.into_iter().take(top_k).collect()
}
