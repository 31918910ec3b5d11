//! Hugging Face's task schema (<https://huggingface.co/docs/inference-providers/tasks/fill-mask>).
//!
//! ```text
//! POST /models/NAME                       the task of the model
//! POST /models/NAME/pipeline/TASK         another task that it can do: feature-extraction
//! POST /                                  the only model
//!
//! {"inputs": "a text" or ["texts"], "parameters": {…}}      or the bytes of a picture
//! ```

use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tealight_train::inference::embed::to_unit_length;
use tealight_train::inference::fill_mask::as_pipeline;
use tealight_train::task::classify::Text;
use tealight_train::task::labels::{Classified, Score};

use super::check::{self, OneOrSeveral};
use crate::serve::app::{App, Shared};
use crate::serve::fault::Fault;
use crate::serve::http::body::{answer, parse, read};
use crate::serve::limits::{MAX_JSON, MAX_PICTURE, MAX_TOP_K};
use crate::serve::models::batch::{Classification, Embedding, Fill, Picture};
use crate::serve::models::worker::Worker;

/// The candidates of a mask and the classes of a picture, as in the pipelines of transformers.
const TOP_K: usize = 5;

/// `POST /`
pub(in crate::serve) async fn only(
    State(app): State<Shared>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    let name = app.catalogue.only()?;
    perform(&app, &name, None, &headers, body).await
}

/// `POST /models/NAME`
pub(in crate::serve) async fn named(
    State(app): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    perform(&app, &name, None, &headers, body).await
}

/// `POST /models/NAME/pipeline/TASK`
pub(in crate::serve) async fn pipeline(
    State(app): State<Shared>,
    Path((name, task)): Path<(String, String)>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    perform(&app, &name, Some(task), &headers, body).await
}

/// The body of a request, before its task is known.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    inputs: Value,
    #[serde(default)]
    parameters: Map<String, Value>,
    /// Of the hosted service: whether it may answer from a cache, or waits for a model. Without meaning here.
    #[serde(default, rename = "options")]
    _options: Value,
}

async fn perform(
    app: &App,
    name: &str,
    task: Option<String>,
    headers: &HeaderMap,
    body: Body,
) -> Result<Response, Fault> {
    let worker = app.catalogue.worker(name)?;
    if !is_json(headers) {
        let picture = read(body, MAX_PICTURE).await?;
        return classify_picture(&worker, picture, TOP_K).await;
    }
    let task = match task {
        Some(task) => task,
        None => worker.task().await?.to_owned(),
    };
    // The text of a picture is 4/3 as long as its bytes.
    let limit = if task == "image-classification" { MAX_PICTURE / 3 * 4 } else { MAX_JSON };
    let Question { inputs, parameters, .. } = parse(&read(body, limit).await?)?;
    match task.as_str() {
        "fill-mask" => fill_mask(&worker, inputs, parameters).await,
        "text-classification" => classify(&worker, inputs, parameters).await,
        "feature-extraction" => extract(&worker, inputs, parameters).await,
        "image-classification" => classify_encoded(&worker, &inputs, parameters).await,
        other => Err(Fault::bad(format!(
            "the task \"{other}\" is none of fill-mask, text-classification, feature-extraction and \
             image-classification; `/v1/completions` continues texts"
        ))),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    kind.is_some_and(|kind| kind.to_ascii_lowercase().starts_with("application/json"))
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

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FillParameters {
    #[serde(default = "top_k")]
    top_k: usize,
    targets: Option<OneOrSeveral>,
}

fn top_k() -> usize {
    TOP_K
}

/// As the pipeline `fill-mask`: a list of candidates, a list of lists for several masks, a list of those for several
/// texts.
async fn fill_mask(
    worker: &Worker,
    inputs: Value,
    given: Map<String, Value>,
) -> Result<Response, Fault> {
    let FillParameters { top_k, targets } = parameters(given)?;
    let top_k = check::number("top_k", top_k, MAX_TOP_K)?;
    let targets = targets.map(OneOrSeveral::into_list);
    if let Some(words) = &targets {
        check::texts(words.iter().map(String::as_str))?;
    }
    let (texts, _) = texts(inputs)?;
    let filled = worker.ask(Fill { texts, top_k, targets }).await?;
    Ok(answer(&as_pipeline(&filled)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassifyParameters {
    top_k: Option<usize>,
}

/// As the hosted service: a list of lists of labels, one for each text, also for a single one.
async fn classify(
    worker: &Worker,
    inputs: Value,
    given: Map<String, Value>,
) -> Result<Response, Fault> {
    let ClassifyParameters { top_k } = parameters(given)?;
    let top_k = check::number("top_k", top_k.unwrap_or(MAX_TOP_K), MAX_TOP_K)?;
    let texts = pairs(inputs)?;
    let classified = worker.ask(Classification(texts)).await?;
    let scores: Vec<Vec<Score>> = classified.into_iter().map(|one| best(one, top_k)).collect();
    Ok(answer(&scores))
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

fn best(classified: Classified, top_k: usize) -> Vec<Score> {
    classified.scores.into_iter().take(top_k).collect()
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct ExtractParameters {
    normalize: Option<bool>,
    prompt_name: Option<String>,
}

/// What the model's thread finds out for [`extract`].
enum Prepared {
    /// The texts behind their prompt: the folder says how to pool.
    Prompted(Vec<String>),
    /// The hidden states of the tokens, `[1][seq_len][d_model]` for each text.
    States(Vec<[Vec<Vec<f32>>; 1]>),
}

/// A vector for each text, if the model's folder says how to pool; else, as the pipeline `feature-extraction`, the
/// hidden states of the tokens: `[1][seq_len][d_model]` for each text.
async fn extract(
    worker: &Worker,
    inputs: Value,
    given: Map<String, Value>,
) -> Result<Response, Fault> {
    let ExtractParameters { normalize, prompt_name } = parameters(given)?;
    let (texts, is_list) = texts(inputs)?;
    let prepared = worker.run(move |model| {
        let stated = model.pretrained()?.sentence_settings()?;
        if !stated.is_stated {
            if normalize.is_some() || prompt_name.is_some() {
                let rule = "`normalize` and `prompt_name` are for models of sentence-transformers";
                return Err(Fault::bad(rule));
            }
            let states = model.embedder()?.states(&texts)?;
            return Ok(Prepared::States(states.into_iter().map(|one| [one]).collect()));
        }
        let prompt = match &prompt_name {
            Some(name) => stated.prompt(Some(name))?,
            None => &model.embedder()?.settings().prompt,
        };
        let prompted = texts.iter().map(|text| format!("{prompt}{text}"));
        Ok(Prepared::Prompted(prompted.collect()))
    });
    let prompted = match prepared.await? {
        Prepared::Prompted(prompted) => prompted,
        Prepared::States(states) if is_list => return Ok(answer(&states)),
        Prepared::States(states) => return Ok(answer(&states[0])),
    };
    let mut vectors = worker.ask(Embedding(prompted)).await?;
    if normalize == Some(true) {
        for vector in &mut vectors {
            to_unit_length(vector);
        }
    }
    Ok(if is_list { answer(&vectors) } else { answer(&vectors[0]) })
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PictureParameters {
    #[serde(default = "top_k")]
    top_k: usize,
}

/// A picture in Base64.
async fn classify_encoded(
    worker: &Worker,
    inputs: &Value,
    given: Map<String, Value>,
) -> Result<Response, Fault> {
    let PictureParameters { top_k } = parameters(given)?;
    let top_k = check::number("top_k", top_k, MAX_TOP_K)?;
    let bytes = inputs.as_str().and_then(|text| BASE64_STANDARD.decode(text).ok());
    let bytes =
        bytes.ok_or_else(|| Fault::bad("`inputs` must be the bytes of a PNG or JPEG in Base64"))?;
    classify_picture(worker, bytes, top_k).await
}

/// As the pipeline `image-classification`: a list of classes.
async fn classify_picture(
    worker: &Worker,
    picture: Vec<u8>,
    top_k: usize,
) -> Result<Response, Fault> {
    let classified = worker.ask(Picture(picture)).await?;
    Ok(answer(&best(classified, top_k)))
}
