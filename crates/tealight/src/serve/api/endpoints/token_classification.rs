//! As the hosted service: a list of tagged parts for a text, and a list of lists for several.

use axum::response::Response;
use serde::Deserialize;
use tealight_train::inference::tagger::{Answer, Input, Span, Strategy, Tagging};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::token_classification::{Request, TokenClassification};

use super::{OneOrList, question};
use crate::args::serve::MAX_ANSWER;
use crate::serve::api::check;
use crate::serve::fault::Fault;
use crate::serve::http::body;
use crate::serve::limits::MAX_JSON;
use crate::serve::models::loaded::Loaded;
use crate::serve::models::worker::Worker;

pub(super) const NAME: &str = TokenClassification::NAME;
pub(super) const MAX_BODY: usize = MAX_JSON;

/// The length of a tagged part in JSON without its label and its text, in bytes.
const SPAN_BYTES: usize = 130;
/// The most tags that may be left out.
const MAX_IGNORED: usize = 1000;

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Parameters {
    aggregation_strategy: Strategy,
    ignore_labels: Vec<String>,
    stride: Option<usize>,
}

impl Default for Parameters {
    fn default() -> Self {
        let Tagging { ignored, stride, .. } = Tagging::default();
        Self { aggregation_strategy: Strategy::Simple, ignore_labels: ignored, stride }
    }
}

pub(super) async fn answer(worker: &Worker, body: Vec<u8>) -> Result<Response, Fault> {
    let (OneOrList { list, is_list }, parameters): (OneOrList<String>, Parameters) =
        question(body).await?;
    check::texts(list.iter().map(String::as_str))?;
    let Parameters { aggregation_strategy: strategy, ignore_labels: ignored, stride } = parameters;
    check::number("the number of `ignore_labels`", ignored.len().max(1), MAX_IGNORED)?;
    let texts = list.clone();
    worker.run(move |model| check_work(model, &texts, stride)).await?;
    let inputs = list.into_iter().map(Input::Text).collect();
    let request = Request { inputs, tagging: Tagging { strategy, stride, ignored } };
    let answers = worker.ask::<TokenClassification>(request).await?;
    let spans: Vec<Vec<Span>> = answers.into_iter().map(|Answer { spans, .. }| spans).collect();
    let size = |span: &Span| span.label.len() + 2 * span.word.len() + SPAN_BYTES;
    let n_bytes = spans.iter().flatten().map(size).sum();
    body::sized_answer(spans, n_bytes, move |spans| match &spans[..] {
        [only] if !is_list => serde_json::to_string(only),
        _ => serde_json::to_string(&spans),
    })
    .await
}

/// Checks the work that texts make, and the length of an answer that has every token.
fn check_work(model: &Loaded, texts: &[String], stride: Option<usize>) -> Result<(), Fault> {
    let pipeline = model.pipeline::<TokenClassification>()?;
    let most = pipeline.max_seq_len() / 2;
    if let Some(stride) = stride.filter(|&stride| stride > most) {
        return Err(Fault::bad(format!(
            "`stride` = {stride}: expected at most {most}, half of the tokens that the model reads"
        )));
    }
    let tokenizer = pipeline.tokenizer();
    let lens = texts.iter().map(|text| Ok(tokenizer.encode_plain(text)?.len()));
    let n_tokens: usize = lens.sum::<tealight_train::Result<usize>>()?;
    let most = MAX_ANSWER / SPAN_BYTES;
    if n_tokens > most {
        return Err(Fault::bad(format!(
            "the texts have {n_tokens} tokens, and the limit is {most}: send fewer texts"
        )));
    }
    Ok(())
}
