//! How relevant passages are for a query: by a cross-encoder, a classifier of pairs with one output, which reads both
//! texts together (Nogueira & Cho 2019, <https://arxiv.org/abs/1901.04085>); or by the cosine of their vectors.
//!
//! The same scores as `CrossEncoder.predict` of sentence-transformers, up to rounding.

use candle_core::Device;
use tealight_model::ModelSpec;

use super::feature_extraction::{self, FeatureExtraction};
use super::text_classification::TextClassification;
use super::{Pipeline, divided};
use crate::data::text::tokenizer::Tokenizer;
use crate::error::Result;
use crate::inference::text_classifier::{Activation, Text};
use crate::trained::TrainedModel;

/// The name of the prompt for queries, if a folder has one.
const QUERY_PROMPT: &str = "query";
/// The names of prompts for passages; the first that a folder has is used.
const PASSAGE_PROMPTS: [&str; 3] = ["document", "passage", "corpus"];

/// A model that ranks passages.
#[derive(Debug)]
pub struct Reranking {
    ranker: Ranker,
}

#[derive(Debug)]
enum Ranker {
    Cross(TextClassification, Activation),
    Bi(FeatureExtraction),
}

/// A query and the passages to rank for it.
#[derive(Clone, Debug)]
pub struct Request {
    /// The query.
    pub query: String,
    /// The passages.
    pub passages: Vec<String>,
}

/// How relevant a passage is for a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Relevance {
    /// The score: that of the activation that the model states, or a cosine.
    pub score: f64,
    /// The output of the model before its activation. For a model that compares vectors, the cosine.
    pub raw: f64,
    /// Whether the passage or the query lost tokens, because the model reads fewer.
    pub is_truncated: bool,
}

/// A passage at its rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ranked {
    /// Its place among the given passages, from 0.
    pub index: usize,
    /// Its score.
    pub score: f64,
}

impl Ranked {
    /// All passages by descending score, or output of the model if `by_raw`; of equal ones the earlier first.
    pub fn of(passages: &[Relevance], by_raw: bool) -> Vec<Self> {
        let score = |one: &Relevance| if by_raw { one.raw } else { one.score };
        let ranked = passages.iter().enumerate();
        let mut ranked: Vec<_> =
            ranked.map(|(index, one)| Self { index, score: score(one) }).collect();
        // Different outputs may have equal scores, because σ is flat far from 0.
        let raw = |one: &Self| passages[one.index].raw;
        ranked.sort_by(|a, b| raw(b).total_cmp(&raw(a)));
        ranked
    }
}

impl Pipeline for Reranking {
    const NAME: &'static str = "text-ranking";
    type Request = Request;
    /// The relevance of each passage, in their order.
    type Answer = Vec<Relevance>;

    fn open(model: &TrainedModel, device: &Device) -> Result<Self> {
        let ranker = match &model.spec {
            Some(ModelSpec::TextClassifier(spec)) if spec.n_classes != 1 => {
                return Err(model.wrong_kind("a classifier of texts with one output"));
            }
            Some(ModelSpec::TextClassifier(_)) => {
                let activation = model.activation()?;
                Ranker::Cross(TextClassification::open(model, device)?, activation)
            }
            _ => Ranker::Bi(FeatureExtraction::open(model, device)?),
        };
        Ok(Self { ranker })
    }

    fn answers(&self, requests: &[&Request]) -> Result<Vec<Vec<Relevance>>> {
        let all = match &self.ranker {
            Ranker::Cross(pairs, activation) => by_pairs(pairs, *activation, requests)?,
            Ranker::Bi(vectors) => by_vectors(vectors, requests)?,
        };
        Ok(divided(all, requests.iter().map(|request| request.passages.len())))
    }
}

impl Reranking {
    /// Whether the model reads query and passage together. Else it compares their vectors.
    pub fn is_cross_encoder(&self) -> bool {
        matches!(self.ranker, Ranker::Cross(..))
    }

    /// The number of tokens, special ones included, to which longer pairs, or texts of a model that compares vectors, are
    /// truncated.
    pub fn max_seq_len(&self) -> usize {
        match &self.ranker {
            Ranker::Cross(pairs, _) => pairs.max_seq_len(),
            Ranker::Bi(vectors) => vectors.embedder().max_seq_len(),
        }
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        match &self.ranker {
            Ranker::Cross(pairs, _) => pairs.tokenizer(),
            Ranker::Bi(vectors) => vectors.embedder().tokenizer(),
        }
    }
}

/// The relevance of all passages by a cross-encoder.
fn by_pairs(
    pairs: &TextClassification,
    activation: Activation,
    requests: &[&Request],
) -> Result<Vec<Relevance>> {
    let of_request = |request: &&Request| {
        let pair = |passage: &String| Text {
            text: request.query.clone(),
            text_pair: Some(passage.clone()),
        };
        request.passages.iter().map(pair).collect::<Vec<_>>()
    };
    let texts: Vec<Text> = requests.iter().flat_map(of_request).collect();
    let relevance = |(is_truncated, logits): (bool, Vec<f64>)| Relevance {
        score: activation.score(logits[0]),
        raw: logits[0],
        is_truncated,
    };
    Ok(pairs.logits(&texts)?.into_iter().map(relevance).collect())
}

/// The relevance of all passages by the cosine of vectors, with the folder's prompts for queries and for passages.
fn by_vectors(vectors: &FeatureExtraction, requests: &[&Request]) -> Result<Vec<Relevance>> {
    let prompts = &vectors.stated().prompts;
    let prompt = |names: &[&str]| {
        let name = names.iter().find(|name| prompts.contains_key(**name));
        name.map(|&name| name.to_owned())
    };
    let (of_queries, of_passages) = (prompt(&[QUERY_PROMPT]), prompt(&PASSAGE_PROMPTS));
    let of_request = |request: &&Request| {
        let query = vec![request.query.clone()];
        let query = feature_extraction::Request { texts: query, prompt: of_queries.clone() };
        let texts = request.passages.clone();
        [query, feature_extraction::Request { texts, prompt: of_passages.clone() }]
    };
    let texts: Vec<_> = requests.iter().flat_map(of_request).collect();
    let embedded = vectors.answers(&texts.iter().collect::<Vec<_>>())?;
    let mut all = Vec::new();
    for of_one in embedded.chunks_exact(2) {
        let [query, passages] = of_one else { continue };
        let is_truncated = query.n_truncated() > 0;
        let truncated = passages.are_truncated().iter().map(|own| *own || is_truncated);
        let cosines = passages.cosines(query)?;
        all.extend(cosines.into_iter().zip(truncated).map(|(cosine, is_truncated)| {
            let cosine = f64::from(cosine);
            Relevance { score: cosine, raw: cosine, is_truncated }
        }));
    }
    Ok(all)
}
