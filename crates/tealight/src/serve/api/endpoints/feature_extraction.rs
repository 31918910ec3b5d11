//! A vector for each text, if the model's folder says how to pool; else, as the pipeline `feature-extraction`, the
//! hidden states of the tokens: `[1][seq_len][d_model]` for each text.

use std::fmt;

use axum::response::Response;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Error, IgnoredAny, IntoDeserializer as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::feature_extraction::FeatureExtraction;

use super::OneOrList;
use crate::serve::api::check;
use crate::serve::api::tei::{self, Comparison, Sentences};
use crate::serve::api::vectors::{self, Asked, Direction, Long, MAX_NUMBERS};
use crate::serve::fault::Fault;
use crate::serve::http::body::{self, parse};
use crate::serve::limits::MAX_JSON;
use crate::serve::models::loaded::Loaded;
use crate::serve::models::worker::Worker;

pub(super) const NAME: &str = FeatureExtraction::NAME;
pub(super) const MAX_BODY: usize = MAX_JSON;

/// The body of a request. `InferenceClient` of huggingface_hub sends parameters of this task beside `inputs`, and asks by
/// the same path for the cosines of a text with others.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    inputs: Inputs,
    #[serde(default)]
    parameters: Parameters,
    /// Of the hosted service; without meaning here.
    #[serde(default, rename = "options")]
    _options: Option<IgnoredAny>,
    normalize: Option<bool>,
    prompt_name: Option<String>,
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    dimensions: Option<usize>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    normalize: Option<bool>,
    prompt_name: Option<String>,
    truncate: Option<bool>,
    truncation_direction: Option<Direction>,
    dimensions: Option<usize>,
}

/// Texts to embed, or to compare.
enum Inputs {
    Texts(OneOrList<String>),
    Sentences(Sentences),
}

impl<'de> Deserialize<'de> for Inputs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Inputs;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(
            "`inputs`: a text, a list of texts, or an object with `source_sentence` and `sentences`",
        )
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Inputs, E> {
        OneOrList::deserialize(text.into_deserializer()).map(Inputs::Texts)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, texts: A) -> Result<Inputs, A::Error> {
        OneOrList::deserialize(SeqAccessDeserializer::new(texts)).map(Inputs::Texts)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Inputs, A::Error> {
        Sentences::deserialize(MapAccessDeserializer::new(map)).map(Inputs::Sentences)
    }
}

/// The hidden states of the tokens of a text, `[1][seq_len][d_model]`.
type States = [Vec<Vec<f32>>; 1];

pub(super) async fn answer(worker: &Worker, body: Vec<u8>) -> Result<Response, Fault> {
    let question: Question = parse(body).await?;
    let Parameters { normalize, prompt_name, truncate, truncation_direction, dimensions } =
        question.parameters;
    let normalize = question.normalize.or(normalize);
    let prompt = question.prompt_name.or(prompt_name);
    let truncate = question.truncate.or(truncate).unwrap_or(true);
    let direction = question.truncation_direction.or(truncation_direction).unwrap_or_default();
    let dimensions = question.dimensions.or(dimensions);
    let long = Long::of(truncate, direction)?;
    let OneOrList { list: texts, is_list } = match question.inputs {
        Inputs::Texts(texts) => texts,
        Inputs::Sentences(sentences) => {
            if normalize.is_some() || dimensions.is_some() {
                return Err(Fault::bad(
                    "`normalize` and `dimensions` are for vectors, not cosines",
                ));
            }
            return tei::compare(worker, sentences, Comparison::of(long, prompt)).await;
        }
    };
    check::texts(texts.iter().map(String::as_str))?;
    let has_parameters = normalize.is_some() || prompt.is_some() || dimensions.is_some();
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
    let asked = Asked { texts, prompt, normalize, dimensions, long };
    let vectors = vectors::embed(worker, asked).await?;
    let n_bytes = vectors.n_bytes();
    body::sized_answer(vectors.rows, n_bytes, move |rows| written(rows, is_list)).await
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
        return Ok(None);
    }
    if has_parameters {
        let rule =
            "`normalize`, `prompt_name` and `dimensions` are for models of sentence-transformers";
        return Err(Fault::bad(rule));
    }
    let states = pipeline.embedder().states(texts, MAX_NUMBERS)?;
    Ok(Some(states.into_iter().map(|one| [one]).collect()))
}
