//! What the playground asks: tokens, their tags, attention, continuations with probabilities, forecasts.

use std::ops::{ControlFlow, Range};

use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};
use tealight_model::ModelConfig;
use tealight_model::generation::Sampling;
use tealight_train::inference::attention_map::{AttentionMap, SequenceMaps};
use tealight_train::inference::continuation::Settings;
use tealight_train::inference::forecast::Decoding;
use tealight_train::inference::tagger::TokenTags;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::attention_maps::AttentionMaps;
use tealight_train::pipelines::forecast::{self, Answer, Request};
use tealight_train::pipelines::text_generation::TextGeneration;
use tealight_train::pipelines::token_classification::TokenClassification;
use tealight_train::weather::{format, parse};
use tokio::sync::mpsc::{self, Sender};

use super::check;
use crate::charts::attention::as_json;
use crate::serve::app::Shared;
use crate::serve::fault::Fault;
use crate::serve::http::body::{answer, json, written};
use crate::serve::http::events;
use crate::serve::http::security::check_site;
use crate::serve::limits::{MAX_ATTENDED, MAX_DAYS, MAX_MAP_NUMBERS};
use crate::serve::models::loaded::Loaded;

/// The tokens in place of each token of a continuation, and the tags of each token of a text.
const N_BEST: usize = 5;

/// `GET /models/NAME`: what the model is. It is loaded for that, which no picture in a page of a stranger may cause.
pub(in crate::serve) async fn describe(
    State(app): State<Shared>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response, Fault> {
    check_site(&headers)?;
    let worker = app.catalogue.worker(&name).await?;
    Ok(written(worker.run(|model| Ok(model.describe().to_string())).await?))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OneText {
    text: String,
}

async fn one_text(body: Body) -> Result<String, Fault> {
    let OneText { text } = json(body).await?;
    check::texts(std::iter::once(text.as_str()))?;
    Ok(text)
}

/// `POST /models/NAME/tokens`: the tokens of a text, with the range of characters that each stands for.
pub(in crate::serve) async fn tokens(
    State(app): State<Shared>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Fault> {
    let text = one_text(body).await?;
    let worker = app.catalogue.worker(&name).await?;
    let tokens = worker.run(move |model| {
        let tokenizer = model.tokenizer()?;
        let token = |(id, span): (u32, Range<usize>)| {
            let [start, end] = utf16(&text, &span);
            json!({ "token": tokenizer.token(id), "start": start, "end": end })
        };
        Ok(tokenizer.spans(&text)?.into_iter().map(token).collect::<Value>().to_string())
    });
    Ok(written(tokens.await?))
}

/// `POST /models/NAME/tags`: the tokens of a text with their likeliest tags, in places of characters.
pub(in crate::serve) async fn tags(
    State(app): State<Shared>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Fault> {
    let text = one_text(body).await?;
    let worker = app.catalogue.worker(&name).await?;
    let tags = worker.run(move |model| {
        let tokens = model.pipeline::<TokenClassification>()?.tags_of_tokens(&text, N_BEST)?;
        let token = |TokenTags { characters: Range { start, end }, tags }| {
            json!({ "start": start, "end": end, "tags": tags })
        };
        Ok(tokens.into_iter().map(token).collect::<Value>().to_string())
    });
    Ok(written(tags.await?))
}

/// A range of bytes as JavaScript counts, in units of UTF-16. A range within a character is widened to it.
fn utf16(text: &str, span: &Range<usize>) -> [usize; 2] {
    let [start, end] = [text.floor_char_boundary(span.start), text.ceil_char_boundary(span.end)];
    [start, end].map(|at| text[..at].encode_utf16().count())
}

/// `POST /models/NAME/attention`: the attention maps of a text, or of days.
pub(in crate::serve) async fn attention(
    State(app): State<Shared>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Fault> {
    let text = one_text(body).await?;
    let worker = app.catalogue.worker(&name).await?;
    Ok(written(worker.run(move |model| attention_of(model, &text)).await?))
}

/// The maps in JSON, which is long.
fn attention_of(model: &Loaded, text: &str) -> Result<String, Fault> {
    let pipeline = model.pipeline::<AttentionMaps>()?;
    let n = pipeline.len_of(text)?;
    let ModelConfig { n_layers, n_heads, .. } = model.model.config;
    let longest = MAX_ATTENDED.min((MAX_MAP_NUMBERS / (n_layers * n_heads).max(1)).isqrt());
    if n > longest {
        return Err(too_long(n, longest));
    }
    if let Some(fixed) = model.model.config.required_len().filter(|fixed| *fixed != n) {
        let rule = format!("the sequence has {n} positions, and this model attends over {fixed}");
        return Err(Fault::bad(rule));
    }
    let SequenceMaps { sequence, maps } = pipeline.answer(&text.to_owned())?;
    AttentionMap::check_finite(&maps)?;
    Ok(as_json(sequence, &maps)?.to_string())
}

fn too_long(n: usize, longest: usize) -> Fault {
    Fault::bad(format!(
        "the sequence has {n} positions, and attention is shown for at most {longest}"
    ))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Continue {
    text: String,
    max_tokens: usize,
    temperature: f64,
    top_k: Option<usize>,
    top_p: Option<f64>,
    #[serde(default)]
    seed: u64,
}

/// `POST /models/NAME/continuation`: server-sent events `{"text": …}`, then `{"choices": […]}` with the probability of
/// each token.
pub(in crate::serve) async fn continuation(
    State(app): State<Shared>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Fault> {
    let Continue { text, max_tokens, temperature, top_k, top_p, seed } = json(body).await?;
    check::texts(std::iter::once(text.as_str()))?;
    let sampling = Sampling { temperature, top_k, top_p, ..Sampling::default() };
    let settings = check::continuation(sampling, seed, max_tokens, 1, Vec::new())?;
    let worker = app.catalogue.worker(&name).await?;
    worker.run(|model| model.pipeline::<TextGeneration>().map(drop)).await?;
    let (pieces, received) = mpsc::channel(max_tokens + 2);
    tokio::spawn(async move {
        let failed = pieces.clone();
        let work = move |model: &Loaded, is_gone: &dyn Fn() -> bool| {
            write(model, &text, &settings, &pieces, is_gone)
        };
        let written = worker.run_while_waited_for(work).await;
        if let Err(fault) = written {
            let _ = failed.send(events::data(&json!({ "error": fault.rule }))).await;
        }
    });
    Ok(events::answer(received))
}

fn write(
    model: &Loaded,
    text: &str,
    settings: &Settings,
    pieces: &Sender<Bytes>,
    is_gone: &dyn Fn() -> bool,
) -> Result<(), Fault> {
    let send = |value: &Value| pieces.try_send(events::data(value)).is_ok();
    let is_wanted = || !is_gone() && !pieces.is_closed();
    let pipeline = model.pipeline::<TextGeneration>()?;
    let continuer = pipeline.continuer();
    let mut on_text = |_: usize, piece: &str| {
        let is_sent = is_wanted() && (piece.is_empty() || send(&json!({ "text": piece })));
        if is_sent { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let written = continuer.continue_text(text, settings, &mut on_text)?;
    if !is_wanted() {
        return Ok(());
    }
    let ids = written.first().map_or(&[][..], |one| &one.ids);
    send(&json!({ "choices": continuer.choices(text, ids, N_BEST)? }));
    Ok(())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Forecast {
    days: String,
    n_days: usize,
    temperature: f64,
    #[serde(default)]
    seed: u64,
}

/// `POST /models/NAME/forecast`: the distribution of the next day, that of the rule, and days that follow.
pub(in crate::serve) async fn forecast(
    State(app): State<Shared>,
    Path(name): Path<String>,
    body: Body,
) -> Result<Response, Fault> {
    let Forecast { days, n_days, temperature, seed } = json(body).await?;
    let start = parse(&days).map_err(|error| Fault::bad(error.to_string()))?;
    check::number("the number of days given", start.len(), 10 * MAX_DAYS)?;
    check::number("n_days", n_days, MAX_DAYS)?;
    let worker = app.catalogue.worker(&name).await?;
    let decoding = Decoding::Sample { seed, temperature, top_k: None };
    let request = Request { start, n_days, decoding };
    let Answer { rollout, exact } = worker.ask::<forecast::Forecast>(request).await?;
    let days: Vec<String> =
        rollout.sequences.iter().map(|sequence| format(&sequence.days)).collect();
    Ok(answer(&json!({
        "next": rollout.next,
        "exact": exact,
        "days": days.first(),
        "n_unknown": rollout.n_unknown,
    })))
}
