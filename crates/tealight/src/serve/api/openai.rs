//! OpenAI's completions (<https://platform.openai.com/docs/api-reference/completions>) for causal models.

use std::ops::ControlFlow;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::Response;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tealight_model::generation::Sampling;
use tealight_train::inference::continuation::{Continuation, EndedBy, Settings};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::text_generation::TextGeneration;
use tealight_train::storage::clock::since_1970;
use tokio::sync::mpsc::{self, Sender};

use super::check;
use super::one_or_list::OneOrList;
use crate::serve::app::Shared;
use crate::serve::fault::Fault;
use crate::serve::http::body::{beside, json, written};
use crate::serve::http::events;
use crate::serve::models::loaded::{Loaded, other_task};
use crate::serve::models::table::Item;
use crate::serve::models::worker::Worker;

/// Events that wait for a slow client; with more, its continuation ends.
const PENDING: usize = 4096;
/// The end of a stream.
const DONE: &[u8] = b"data: [DONE]\n\n";

/// `GET /v1/models`
pub(in crate::serve) async fn models(State(app): State<Shared>) -> Result<Response, Fault> {
    let model = |item: Item| json!({ "id": item.name, "object": "model", "created": 0, "owned_by": "local" });
    let items = app.catalogue.items();
    let write = move || {
        let models: Vec<Value> = items.into_iter().map(model).collect();
        json!({ "object": "list", "data": models }).to_string()
    };
    Ok(written(beside(write).await?))
}

/// What a client asks for. Keys that are not here are refused by name.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Completion {
    model: String,
    prompt: OneOrList<String>,
    #[serde(default = "max_tokens")]
    max_tokens: usize,
    #[serde(default = "one")]
    temperature: f64,
    top_p: Option<f64>,
    /// Not of OpenAI, but of `tealight generate`.
    top_k: Option<usize>,
    #[serde(default)]
    seed: u64,
    #[serde(default = "first")]
    n: usize,
    stop: Option<OneOrList<String>>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    echo: bool,
    /// An abuse identifier; without meaning here.
    #[serde(default, rename = "user")]
    _user: Option<IgnoredAny>,
}

fn max_tokens() -> usize {
    16
}

fn one() -> f64 {
    1.
}

fn first() -> usize {
    1
}

/// Prompts to continue, and how.
struct Order {
    name: String,
    prompts: Vec<String>,
    settings: Settings,
    echo: bool,
}

/// `POST /v1/completions`
pub(in crate::serve) async fn complete(
    State(app): State<Shared>,
    body: Body,
) -> Result<Response, Fault> {
    let completion: Completion = json(body).await?;
    let is_streamed = completion.stream;
    let order = completion.order()?;
    let worker = app.catalogue.worker(&order.name).await?;
    if is_streamed {
        return stream(&worker, order).await;
    }
    answer_whole(&worker, order).await
}

impl Completion {
    fn order(self) -> Result<Order, Fault> {
        let Self { temperature, top_p, top_k, .. } = self;
        let sampling = Sampling { temperature, top_p, top_k, ..Sampling::default() };
        let stop = self.stop.map_or(Vec::new(), |stop| stop.list);
        let settings = check::continuation(sampling, self.seed, self.max_tokens, self.n, stop)?;
        let prompts = self.prompt.list;
        check::texts(prompts.iter().map(String::as_str))?;
        check::tokens(prompts.len(), &settings)?;
        Ok(Order { name: self.model, prompts, settings, echo: self.echo })
    }
}

/// The number of tokens of prompts and continuations.
#[derive(Default)]
struct Usage {
    prompt: usize,
    completion: usize,
}

impl Usage {
    fn as_json(&self) -> Value {
        let Self { prompt, completion } = self;
        let total = prompt + completion;
        json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total })
    }
}

/// All continuations in one answer. A client that is gone ends them.
async fn answer_whole(worker: &Worker, order: Order) -> Result<Response, Fault> {
    let work = move |model: &Loaded, is_gone: &dyn Fn() -> bool| {
        let mut choices = Vec::new();
        let mut usage = Usage::default();
        let pipeline = model.pipeline::<TextGeneration>()?;
        let continuer = pipeline.continuer();
        for (at, prompt) in order.prompts.iter().enumerate() {
            if is_gone() {
                break;
            }
            let mut on_text = |_: usize, _: &str| {
                if is_gone() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let continuations = continuer.continue_text(prompt, &order.settings, &mut on_text)?;
            usage.prompt += continuer.n_tokens(prompt)?;
            for (row, one) in continuations.iter().enumerate() {
                usage.completion += one.n_tokens;
                let before = if order.echo { prompt } else { "" };
                let text = format!("{before}{}", one.text);
                choices.push(choice(at * order.settings.n + row, &text, Some(one)));
            }
        }
        let mut object = object(&order.name, &choices);
        object["usage"] = usage.as_json();
        Ok(object.to_string())
    };
    Ok(written(worker.run_while_waited_for(work).await?))
}

/// Continuations piece by piece, as server-sent events.
///
/// # Errors
/// If the model is no causal one. A later error is an event.
async fn stream(worker: &Worker, order: Order) -> Result<Response, Fault> {
    let task = worker.task().await?;
    if task != TextGeneration::NAME {
        return Err(other_task(task, TextGeneration::NAME));
    }
    let (pieces, received) = mpsc::channel(PENDING);
    let worker = worker.clone();
    tokio::spawn(async move {
        let failed = pieces.clone();
        let work = move |model: &Loaded, is_gone: &dyn Fn() -> bool| {
            write(model, &order, &pieces, &|| is_gone() || pieces.is_closed())
        };
        if let Err(fault) = worker.run_while_waited_for(work).await {
            let error = json!({ "error": { "message": fault.rule, "type": "server_error" } });
            let _ = failed.send(events::data(&error)).await;
        }
        let _ = failed.send(Bytes::from_static(DONE)).await;
    });
    Ok(events::answer(received))
}

/// Sends each piece as soon as it is final. A client that is gone, or too slow, ends the continuation.
fn write(
    model: &Loaded,
    order: &Order,
    pieces: &Sender<Bytes>,
    is_gone: &dyn Fn() -> bool,
) -> Result<(), Fault> {
    let Order { name, prompts, settings, echo } = order;
    let send = |choice: Value| {
        let is_sent = pieces.try_send(events::data(&object(name, &[choice]))).is_ok();
        if is_sent { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    let pipeline = model.pipeline::<TextGeneration>()?;
    let continuer = pipeline.continuer();
    for (at, prompt) in prompts.iter().enumerate() {
        if is_gone() {
            break;
        }
        let index = |row: usize| at * settings.n + row;
        for row in 0..if *echo { settings.n } else { 0 } {
            let _ = send(choice(index(row), prompt, None));
        }
        let mut on_text = |row: usize, text: &str| match text {
            _ if is_gone() => ControlFlow::Break(()),
            "" => ControlFlow::Continue(()),
            text => send(choice(index(row), text, None)),
        };
        let continuations = continuer.continue_text(prompt, settings, &mut on_text)?;
        for (row, one) in continuations.iter().enumerate() {
            let _ = send(choice(index(row), "", Some(one)));
        }
    }
    Ok(())
}

/// A choice; `ended` is the continuation at its end.
fn choice(index: usize, text: &str, ended: Option<&Continuation>) -> Value {
    let reason = ended.map(|one| match one.ended_by {
        EndedBy::Length => "length",
        EndedBy::End | EndedBy::Stop => "stop",
    });
    json!({ "text": text, "index": index, "logprobs": null, "finish_reason": reason })
}

fn object(name: &str, choices: &[Value]) -> Value {
    let now = since_1970();
    json!({
        "id": format!("cmpl-{}", now.as_micros()),
        "object": "text_completion",
        "created": now.as_secs(),
        "model": name,
        "choices": choices,
    })
}
