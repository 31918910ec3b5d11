//! Vectors of texts and relevance of passages, as several APIs ask for them.

use axum::http::StatusCode;
use serde::Deserialize;
use tealight_model::ModelSpec;
use tealight_train::inference::embed::{Normalize, to_unit_length};
use tealight_train::inference::text_classifier::Activation;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::feature_extraction::{FeatureExtraction, Request};
use tealight_train::pipelines::reranking::{self, Relevance, Reranking};

use super::check;
use crate::args::serve::MAX_ANSWER;
use crate::serve::fault::Fault;
use crate::serve::http::body::{beside, sized};
use crate::serve::models::loaded::other_task;
use crate::serve::models::worker::Worker;

/// The length of a number in JSON, in bytes.
pub(super) const NUMBER_BYTES: usize = 12;
/// The numbers of an answer.
pub(super) const MAX_NUMBERS: usize = MAX_ANSWER / NUMBER_BYTES;

/// The side on which texts that are too long lose tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Direction {
    #[default]
    #[serde(alias = "Right")]
    Right,
    #[serde(alias = "Left")]
    Left,
}

/// Whether texts may lose tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Long {
    /// They are refused.
    #[default]
    Refused,
    /// They are truncated.
    Truncated,
}

impl Long {
    /// # Errors
    /// If texts should lose tokens on the left.
    pub(super) fn of(truncate: bool, direction: Direction) -> Result<Self, Fault> {
        match (truncate, direction) {
            (true, Direction::Left) => {
                Err(Fault::bad("`truncation_direction` = \"left\" is not supported"))
            }
            (true, Direction::Right) => Ok(Self::Truncated),
            (false, _) => Ok(Self::Refused),
        }
    }

    /// # Errors
    /// If one of `n` texts lost tokens, and may not.
    pub(super) fn check(self, n_truncated: usize, n: usize) -> Result<(), Fault> {
        if self == Self::Truncated || n_truncated == 0 {
            return Ok(());
        }
        let rule = format!(
            "{n_truncated} of {n} texts have more tokens than the model reads: shorten them, or send `\"truncate\": true` \
             where the API has it"
        );
        Err(Fault::new(StatusCode::PAYLOAD_TOO_LARGE, rule))
    }
}

/// Texts to embed, and how.
#[derive(Default)]
pub(super) struct Asked {
    pub(super) texts: Vec<String>,
    pub(super) prompt: Option<String>,
    /// Whether vectors get length 1; as the folder says when absent.
    pub(super) normalize: Option<bool>,
    /// Only so many of the first numbers of each vector.
    pub(super) dimensions: Option<usize>,
    pub(super) long: Long,
}

/// Vectors of texts.
pub(super) struct Vectors {
    pub(super) rows: Vec<Vec<f32>>,
    pub(super) n_tokens: usize,
}

impl Vectors {
    /// About the length of all numbers in JSON, in bytes.
    pub(super) fn n_bytes(&self) -> usize {
        self.rows.iter().map(Vec::len).sum::<usize>() * NUMBER_BYTES
    }
}

/// Embeds texts.
///
/// # Errors
/// If vectors should keep their length, and the model's folder normalises them.
pub(super) async fn embed(worker: &Worker, asked: Asked) -> Result<Vectors, Fault> {
    let Asked { texts, prompt, normalize, dimensions, long } = asked;
    check::texts(texts.iter().map(String::as_str))?;
    let model = worker.run(|model| {
        let pipeline = model.pipeline::<FeatureExtraction>()?;
        let embedder = pipeline.embedder();
        Ok((embedder.dim(), embedder.settings().normalize != Normalize::No))
    });
    let (dim, is_normalized) = model.await?;
    if normalize == Some(false) && is_normalized {
        return Err(Fault::bad(
            "the folder of this model normalises vectors: `normalize` = false is not possible",
        ));
    }
    check_numbers(texts.len(), dim, dimensions)?;
    let embedded = worker.ask::<FeatureExtraction>(Request { texts, prompt }).await?;
    long.check(embedded.n_truncated(), embedded.len())?;
    let row = move |row: &[f32]| {
        let mut row = row[..dimensions.unwrap_or(row.len())].to_vec();
        if normalize == Some(true) {
            to_unit_length(&mut row);
        }
        row
    };
    let (n_bytes, n_tokens) = (embedded.len() * dim * size_of::<f32>(), embedded.n_tokens());
    let rows = sized(n_bytes, move || embedded.rows().map(row).collect()).await?;
    Ok(Vectors { rows, n_tokens })
}

/// Checks the numbers of `n_texts` vectors of length `dim`, of which `dimensions` are asked for.
fn check_numbers(n_texts: usize, dim: usize, dimensions: Option<usize>) -> Result<(), Fault> {
    if let Some(dimensions) = dimensions {
        check::number("dimensions", dimensions, dim)?;
    }
    let dim = dimensions.unwrap_or(dim);
    if n_texts * dim > MAX_NUMBERS {
        return Err(Fault::bad(format!(
            "{n_texts} vectors of {dim} numbers exceed the limit of {MAX_NUMBERS} numbers: send fewer texts"
        )));
    }
    Ok(())
}

/// The cosine of the vector of `source` with that of each of `others`.
pub(super) async fn similarity(
    worker: &Worker,
    source: String,
    others: Vec<String>,
    prompt: Option<String>,
    long: Long,
) -> Result<Vec<f64>, Fault> {
    check::texts(others.iter().map(String::as_str))?;
    check::texts([&*source].into_iter())?;
    let n_others = others.len();
    let texts = [vec![source], others].concat();
    let embedded = worker.ask::<FeatureExtraction>(Request { texts, prompt }).await?;
    long.check(embedded.n_truncated(), embedded.len())?;
    let cosines = beside(move || {
        let parts = embedded.divided([1, n_others].into_iter());
        parts[1].cosines(&parts[0])
    });
    Ok(cosines.await??.into_iter().map(f64::from).collect())
}

/// How relevant passages are for a query: scores are σ of the outputs, whatever activation the folder states, as in
/// text-embeddings-inference.
///
/// # Errors
/// With the status 424, as there, if the model is no cross-encoder.
pub(super) async fn rank(
    worker: &Worker,
    query: String,
    passages: Vec<String>,
    long: Long,
) -> Result<Vec<Relevance>, Fault> {
    check::texts(passages.iter().map(String::as_str))?;
    check::texts([&*query].into_iter())?;
    let is_ranker = worker.run(|model| {
        let spec = &model.model.spec;
        Ok(matches!(spec, Some(ModelSpec::TextClassifier(spec)) if spec.n_classes == 1))
    });
    if !is_ranker.await? {
        let Fault { rule, .. } = other_task(worker.task().await?, Reranking::NAME);
        return Err(Fault::new(StatusCode::FAILED_DEPENDENCY, rule));
    }
    let mut relevance = worker.ask::<Reranking>(reranking::Request { query, passages }).await?;
    for one in &mut relevance {
        one.score = Activation::Sigmoid.score(one.raw);
    }
    let n_truncated = relevance.iter().filter(|one| one.is_truncated).count();
    long.check(n_truncated, relevance.len())?;
    Ok(relevance)
}
