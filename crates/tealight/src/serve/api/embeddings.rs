//! OpenAI's embeddings (<https://platform.openai.com/docs/api-reference/embeddings>), and the reranking of Cohere and Jina
//! beside them (<https://jina.ai/reranker>).
//!
//! Vectors have length 1, as those of OpenAI, also when `dimensions` shortens them.

use std::fmt;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::{Error, IgnoredAny, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Value, json};
use tealight_train::pipelines::reranking::Ranked;

use super::check;
use super::one_or_list::{Item, OneOrList};
use super::vectors::{self, Asked, Long, Vectors};
use crate::args::serve::MAX_TEXTS;
use crate::serve::app::Shared;
use crate::serve::fault::Fault;
use crate::serve::http::body::{json, sized_answer};

/// The length of an item without its vector or its text in JSON, in bytes.
const ITEM_BYTES: usize = 80;

/// A text. Clients may send token ids instead, which are refused: they are those of OpenAI's tokenizer.
struct Input(String);

impl Item for Input {
    const NAMES: [&'static str; 2] = ["a text", "texts"];
}

impl<'de> Deserialize<'de> for Input {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl Visitor<'_> for Reader {
    type Value = Input;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .write_str("a text; token ids are not supported, because they are of another tokenizer")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Input, E> {
        Ok(Input(text.to_owned()))
    }
}

/// How numbers are written.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Encoding {
    #[default]
    Float,
    /// The bytes of f32, the lowest first, in Base64.
    Base64,
}

/// A vector as it is written.
#[derive(Serialize)]
#[serde(untagged)]
enum Written<'a> {
    Numbers(&'a [f32]),
    Base64(String),
}

impl Encoding {
    fn write(self, row: &[f32]) -> Written<'_> {
        match self {
            Self::Float => Written::Numbers(row),
            Self::Base64 => {
                let bytes: Vec<u8> = row.iter().flat_map(|number| number.to_le_bytes()).collect();
                Written::Base64(STANDARD.encode(bytes))
            }
        }
    }
}

/// What a client asks to embed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Wanted {
    model: String,
    input: OneOrList<Input>,
    #[serde(default)]
    encoding_format: Encoding,
    dimensions: Option<usize>,
    /// An abuse identifier; without meaning here.
    #[serde(default, rename = "user")]
    _user: Option<IgnoredAny>,
}

/// The vector of a text in the answer.
#[derive(Serialize)]
struct Embedded<'a> {
    object: &'static str,
    index: usize,
    embedding: Written<'a>,
}

/// The answer.
#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Embedded<'a>>,
    model: &'a str,
    usage: Value,
}

/// `POST /v1/embeddings`
pub(in crate::serve) async fn embed(
    State(app): State<Shared>,
    body: Body,
) -> Result<Response, Fault> {
    let Wanted { model, input, encoding_format, dimensions, .. } = json(body).await?;
    let worker = app.catalogue.worker(&model).await?;
    let texts = input.list.into_iter().map(|Input(text)| text).collect();
    let asked = Asked { texts, dimensions, normalize: Some(true), ..Asked::default() };
    let vectors = vectors::embed(&worker, asked).await?;
    let n_bytes = vectors.n_bytes() + vectors.rows.len() * ITEM_BYTES;
    let write = move |Vectors { rows, n_tokens }: &Vectors| {
        let written = rows.iter().map(|row| encoding_format.write(row)).enumerate();
        let data =
            written.map(|(index, embedding)| Embedded { object: "embedding", index, embedding });
        let data = data.collect();
        let usage = json!({ "prompt_tokens": n_tokens, "total_tokens": n_tokens });
        serde_json::to_string(&List { object: "list", data, model: &model, usage })
    };
    sized_answer(vectors, n_bytes, write).await
}

/// A query and the passages that a client wants ranked.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Ranking {
    model: String,
    query: String,
    documents: Vec<String>,
    top_n: Option<usize>,
    #[serde(default)]
    return_documents: bool,
}

/// `POST /v1/rerank`
pub(in crate::serve) async fn rerank(
    State(app): State<Shared>,
    body: Body,
) -> Result<Response, Fault> {
    let Ranking { model, query, documents, top_n, return_documents } = json(body).await?;
    if let Some(top_n) = top_n {
        check::number("top_n", top_n, MAX_TEXTS)?;
    }
    let worker = app.catalogue.worker(&model).await?;
    let relevance = vectors::rank(&worker, query, documents.clone(), Long::Truncated).await?;
    let n_wanted = top_n.unwrap_or(documents.len());
    let size = |text: &String| ITEM_BYTES + if return_documents { 2 * text.len() } else { 0 };
    let n_bytes = documents.iter().map(size).sum();
    let write = move |documents: &Vec<String>| {
        let result = |Ranked { index, score }| {
            let mut result = json!({ "index": index, "relevance_score": score });
            if return_documents {
                result["document"] = json!({ "text": documents[index] });
            }
            result
        };
        let ranked = Ranked::of(&relevance, false).into_iter().take(n_wanted);
        let results: Vec<Value> = ranked.map(result).collect();
        serde_json::to_string(&json!({ "model": model, "results": results }))
    };
    sized_answer(documents, n_bytes, write).await
}
