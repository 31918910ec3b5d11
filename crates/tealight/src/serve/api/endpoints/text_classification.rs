//! As the hosted service: a list of lists of labels, one for each text, also for a single one.

use std::fmt;

use axum::response::Response;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tealight_train::inference::labels::Score;
use tealight_train::inference::text_classifier::Text;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::text_classification::TextClassification;

use super::{Item, OneOrList, best, n_bytes, question};
use crate::serve::api::check;
use crate::serve::fault::Fault;
use crate::serve::http::body;
use crate::serve::limits::{MAX_JSON, MAX_TOP_K};
use crate::serve::models::worker::Worker;

pub(super) const NAME: &str = TextClassification::NAME;
pub(super) const MAX_BODY: usize = MAX_JSON;

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    top_k: Option<usize>,
}

/// A text, or an object with `text` and `text_pair`.
struct Given(Text);

impl Item for Given {
    const NAMES: [&'static str; 2] =
        ["a text, an object with `text` and `text_pair`,", "texts and objects"];
}

impl<'de> Deserialize<'de> for Given {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Given;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a text, or an object with `text` and `text_pair`")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Given, E> {
        Ok(Given(Text { text: text.to_owned(), text_pair: None }))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Given, A::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Pair {
            text: String,
            text_pair: Option<String>,
        }
        let Pair { text, text_pair } = Pair::deserialize(MapAccessDeserializer::new(map))?;
        Ok(Given(Text { text, text_pair }))
    }
}

pub(super) async fn answer(worker: &Worker, body: Vec<u8>) -> Result<Response, Fault> {
    let (OneOrList { list, .. }, Parameters { top_k }) = question(body).await?;
    let top_k = check::number("top_k", top_k.unwrap_or(MAX_TOP_K), MAX_TOP_K)?;
    let texts: Vec<Text> = list.into_iter().map(|Given(text)| text).collect();
    check::pairs(&texts)?;
    let classified = worker.ask::<TextClassification>(texts).await?;
    let scores: Vec<Vec<Score>> = classified.into_iter().map(|one| best(one, top_k)).collect();
    let n_bytes = n_bytes(scores.iter().flatten());
    body::sized_answer(scores, n_bytes, serde_json::to_string).await
}
