//! The routes of text-embeddings-inference (<https://huggingface.github.io/text-embeddings-inference>).
//!
//! ```text
//! POST /embed         {"inputs": "a text" or ["texts"], …}                         [[numbers], …]
//! POST /similarity    {"inputs": {"source_sentence", "sentences"}, …}              [cosines]
//! POST /rerank        {"query", "texts": ["passages"], …}                          [{"index", "score"}, …]
//! POST /predict       {"inputs": "a text", ["a", "pair"] or [["texts"], …], …}     [{"label", "score"}, …]
//! ```
//!
//! They are for the only model; `/models/NAME/embed` and so on name one.

use axum::Router;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::Response;
use axum::routing::post;
use serde::{Deserialize, Serialize};
use tealight_train::inference::labels::Score;
use tealight_train::inference::text_classifier::Text;
use tealight_train::pipelines::reranking::Ranked;
use tealight_train::pipelines::text_classification::TextClassification;

use super::check;
use super::one_or_list::{Item, OneOrList};
use super::vectors::{self, Asked, Direction, Long, NUMBER_BYTES};
use crate::serve::app::{App, Shared};
use crate::serve::fault::Fault;
use crate::serve::http::body::{json, sized_answer};
use crate::serve::models::worker::Worker;

/// The length of a rank or a label with its score in JSON without texts and names, in bytes.
const SCORE_BYTES: usize = 70;

/// The routes of a model.
pub(in crate::serve) fn routes() -> Router<Shared> {
    Router::new()
        .route("/embed", post(embed))
        .route("/similarity", post(similarity))
        .route("/rerank", post(rerank))
        .route("/predict", post(predict))
}

/// The name in the path.
type Name = Option<Path<String>>;

/// The model of this name, or the only one.
async fn worker(app: &App, name: Name) -> Result<Worker, Fault> {
    let name = match name {
        Some(Path(name)) => name,
        None => app.catalogue.only()?,
    };
    app.catalogue.worker(&name).await
}

/// `POST /embed`
async fn embed(State(app): State<Shared>, name: Name, body: Body) -> Result<Response, Fault> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Request {
        inputs: OneOrList<String>,
        #[serde(default = "yes")]
        normalize: bool,
        #[serde(default)]
        truncate: bool,
        #[serde(default)]
        truncation_direction: Direction,
        prompt_name: Option<String>,
        dimensions: Option<usize>,
    }
    fn yes() -> bool {
        true
    }
    let Request { inputs, normalize, truncate, truncation_direction, prompt_name, dimensions } =
        json(body).await?;
    let asked = Asked {
        texts: inputs.list,
        prompt: prompt_name,
        normalize: Some(normalize),
        dimensions,
        long: Long::of(truncate, truncation_direction)?,
    };
    let vectors = vectors::embed(&worker(&app, name).await?, asked).await?;
    let n_bytes = vectors.n_bytes();
    sized_answer(vectors.rows, n_bytes, serde_json::to_string).await
}

/// A text, and those to compare it with.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Sentences {
    pub(super) source_sentence: String,
    pub(super) sentences: Vec<String>,
}

/// How texts are compared.
#[derive(Default)]
pub(super) struct Comparison {
    long: Long,
    prompt: Option<String>,
}

impl Comparison {
    pub(super) fn of(long: Long, prompt: Option<String>) -> Self {
        Self { long, prompt }
    }
}

/// `parameters` of a comparison.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Parameters {
    truncate: Option<bool>,
    truncation_direction: Direction,
    prompt_name: Option<String>,
}

impl Parameters {
    /// The comparison; texts may lose tokens if `truncates`, unless it is said here.
    pub(super) fn comparison(self, truncates: bool) -> Result<Comparison, Fault> {
        let Self { truncate, truncation_direction, prompt_name: prompt } = self;
        let long = Long::of(truncate.unwrap_or(truncates), truncation_direction)?;
        Ok(Comparison { long, prompt })
    }
}

/// `POST /similarity`
async fn similarity(State(app): State<Shared>, name: Name, body: Body) -> Result<Response, Fault> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Request {
        inputs: Sentences,
        #[serde(default)]
        parameters: Option<Parameters>,
    }
    let Request { inputs, parameters } = json(body).await?;
    let comparison = parameters.unwrap_or_default().comparison(false)?;
    compare(&worker(&app, name).await?, inputs, comparison).await
}

/// The cosine of a text with each other.
pub(super) async fn compare(
    worker: &Worker,
    Sentences { source_sentence, sentences }: Sentences,
    Comparison { long, prompt }: Comparison,
) -> Result<Response, Fault> {
    let cosines = vectors::similarity(worker, source_sentence, sentences, prompt, long).await?;
    let n_bytes = cosines.len() * NUMBER_BYTES;
    sized_answer(cosines, n_bytes, serde_json::to_string).await
}

/// A passage at its rank.
#[derive(Serialize)]
struct Rank {
    index: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    text: Option<String>,
    score: f64,
}

/// `POST /rerank`
async fn rerank(State(app): State<Shared>, name: Name, body: Body) -> Result<Response, Fault> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Request {
        query: String,
        texts: Vec<String>,
        #[serde(default)]
        raw_scores: bool,
        #[serde(default)]
        return_text: bool,
        #[serde(default)]
        truncate: bool,
        #[serde(default)]
        truncation_direction: Direction,
    }
    let Request { query, texts, raw_scores, return_text, truncate, truncation_direction } =
        json(body).await?;
    let long = Long::of(truncate, truncation_direction)?;
    let worker = worker(&app, name).await?;
    let relevance = vectors::rank(&worker, query, texts.clone(), long).await?;
    let rank = |Ranked { index, score }| {
        let text = return_text.then(|| texts[index].clone());
        Rank { index, text, score }
    };
    let ranks: Vec<Rank> = Ranked::of(&relevance, raw_scores).into_iter().map(rank).collect();
    let size = |rank: &Rank| rank.text.as_ref().map_or(0, |text| 2 * text.len()) + SCORE_BYTES;
    let n_bytes = ranks.iter().map(size).sum();
    sized_answer(ranks, n_bytes, serde_json::to_string).await
}

impl Item for OneOrList<String> {
    const NAMES: [&'static str; 2] = ["a text", "texts, or of lists of one or two texts"];
}

/// `POST /predict`
async fn predict(State(app): State<Shared>, name: Name, body: Body) -> Result<Response, Fault> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Request {
        inputs: OneOrList<OneOrList<String>>,
        #[serde(default)]
        raw_scores: bool,
        #[serde(default)]
        truncate: bool,
        #[serde(default)]
        truncation_direction: Direction,
    }
    let Request { inputs, raw_scores, truncate, truncation_direction } = json(body).await?;
    let (texts, is_batch) = texts(inputs)?;
    check::pairs(&texts)?;
    let long = Long::of(truncate, truncation_direction)?;
    let worker = worker(&app, name).await?;
    let asked = texts.clone();
    let logits = worker
        .run(move |model| {
            let pipeline = model.pipeline::<TextClassification>()?;
            if long == Long::Refused {
                long.check(pipeline.n_truncated(&asked)?, asked.len())?;
            }
            Ok(raw_scores.then(|| pipeline.raw_scores(&asked)).transpose()?)
        })
        .await?;
    let scores: Vec<Vec<Score>> = if let Some(logits) = logits {
        logits
    } else {
        let classified = worker.ask::<TextClassification>(texts).await?;
        classified.into_iter().map(|one| one.scores).collect()
    };
    let n_bytes = scores.iter().flatten().map(|one| one.label.len() + SCORE_BYTES).sum();
    sized_answer(scores, n_bytes, move |scores| match &scores[..] {
        [only] if !is_batch => serde_json::to_string(only),
        _ => serde_json::to_string(&scores),
    })
    .await
}

/// The texts and pairs of a request, and whether it is a batch of them.
fn texts(inputs: OneOrList<OneOrList<String>>) -> Result<(Vec<Text>, bool), Fault> {
    let refused = || {
        Fault::bad("`inputs`: expected a text, a list of one or two texts, or a list of such lists")
    };
    let text = |list: Vec<String>| {
        let mut list = list.into_iter();
        match (list.next(), list.next(), list.next()) {
            (Some(text), text_pair, None) => Ok(Text { text, text_pair }),
            _ => Err(refused()),
        }
    };
    let is_batch = inputs.is_list && inputs.list.iter().all(|one| one.is_list);
    if is_batch {
        let texts = inputs.list.into_iter().map(|one| text(one.list));
        return Ok((texts.collect::<Result<_, _>>()?, true));
    }
    if inputs.list.iter().any(|one| one.is_list) {
        return Err(refused());
    }
    let own = inputs.list.into_iter().flat_map(|one| one.list).collect();
    Ok((vec![text(own)?], false))
}
