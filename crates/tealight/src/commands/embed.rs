//! `tealight embed MODEL TEXT`: vectors of texts, or the texts of a file that are near them.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Serialize;
use serde_json::json;
use tealight_train::inference::embed::SentenceSettings;
use tealight_train::inference::embed::{Embeddings, Neighbour, Normalize, Settings};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::feature_extraction::{FeatureExtraction, Request};
use tealight_train::storage::npy;

use crate::args::predict as args;
use crate::runs::input_warnings::{warn_of_truncated, warn_of_unknown};
use crate::runs::load::open_model;
use crate::runs::number_format::NumberFormat;
use crate::terminal::input;
use crate::terminal::output::{log, print};

pub(crate) fn run(args: &args::Embed) -> Result<()> {
    NumberFormat::for_device(args.computation.precision, args.model.weights.device)
        .warn_if_replaced();
    let (model, device) = open_model(&args.model)?;
    let texts = input::texts(&args.texts, args.file.as_deref())?;
    let others = args.similar.as_deref().map(|path| input::texts(&[], Some(path))).transpose()?;
    let change = |settings: &mut Settings| add_arguments(settings, args);
    let pipeline = FeatureExtraction::with_settings(&model, &device, change)?;
    log_choices(args, pipeline.stated());
    let embedded = embed(&pipeline, args.prompt.as_deref(), &texts)?;
    if let Some(path) = &args.npy {
        npy::save(path, embedded.values(), embedded.dim())?;
    }
    match others {
        Some(others) => {
            let prompt = args.similar_prompt.as_deref().or(args.prompt.as_deref());
            let near = embed(&pipeline, prompt, &others)?;
            let nearest = embedded.nearest(&near, args.top_k)?;
            print(&similar(args.json, &texts, &others, &nearest)?)
        }
        None if args.json => print(&vectors_as_json(&texts, &embedded)?),
        None if args.npy.is_some() => Ok(()),
        None => print(&vectors_as_text(&embedded)),
    }
}

/// Puts what the arguments say in place of what the folder states.
fn add_arguments(settings: &mut Settings, args: &args::Embed) {
    if let Some(pooling) = args.pooling {
        settings.poolings = vec![pooling];
    }
    match (args.normalize, args.no_normalize) {
        (true, _) => settings.normalize = Normalize::Returned,
        (_, true) => settings.normalize = Normalize::No,
        _ => {}
    }
}

/// Says what the folder does not state, and which of its prompts are not used.
fn log_choices(args: &args::Embed, stated: &SentenceSettings) {
    if !stated.is_stated && args.pooling.is_none() {
        log("the model states no pooling: taking the mean of all tokens (`--pooling`)");
    }
    let prompts = stated.prompts.iter().filter(|(_, prompt)| !prompt.is_empty());
    let names: Vec<_> = prompts.map(|(name, _)| format!("`{name}`")).collect();
    if args.prompt.is_none() && stated.default_prompt.is_none() && !names.is_empty() {
        log(&format!(
            "the model has the prompts {}, and none is used (`--prompt`)",
            names.join(", ")
        ));
    }
}

/// Embeds texts, and says what of them the model does not read.
fn embed(
    pipeline: &FeatureExtraction,
    prompt: Option<&str>,
    texts: &[String],
) -> Result<Embeddings> {
    let request = Request { texts: texts.to_vec(), prompt: prompt.map(str::to_owned) };
    let embedded = pipeline.answer(&request)?;
    let embedder = pipeline.embedder();
    warn_of_truncated(embedded.n_truncated(), texts.len(), embedder.max_seq_len());
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    warn_of_unknown(embedder.tokenizer(), &texts)?;
    Ok(embedded)
}

/// The numbers of each vector on a line.
fn vectors_as_text(embedded: &Embeddings) -> String {
    let mut lines = String::new();
    for row in embedded.rows() {
        for (at, value) in row.iter().enumerate() {
            let gap = if at > 0 { " " } else { "" };
            let _ = write!(lines, "{gap}{value}");
        }
        lines.push('\n');
    }
    lines
}

fn vectors_as_json(texts: &[String], embedded: &Embeddings) -> Result<String> {
    #[derive(Serialize)]
    struct Embedded<'a> {
        text: &'a str,
        embedding: &'a [f32],
    }
    let rows = texts.iter().zip(embedded.rows());
    json_lines(rows.map(|(text, embedding)| Embedded { text, embedding }))
}

/// The nearest of the `others` for each text: lines with the cosine, under the text if there are several.
fn similar(
    as_json: bool,
    texts: &[String],
    others: &[String],
    nearest: &[Vec<Neighbour>],
) -> Result<String> {
    if as_json {
        let one = |&Neighbour { index, cosine }: &Neighbour| json!({ "index": index, "text": others[index], "cosine": cosine });
        return json_lines(texts.iter().zip(nearest).map(|(text, nearest)| {
            json!({ "text": text, "similar": nearest.iter().map(one).collect::<Vec<_>>() })
        }));
    }
    let mut lines = String::new();
    for (number, (text, nearest)) in texts.iter().zip(nearest).enumerate() {
        let gap = if number > 0 { "\n" } else { "" };
        let _ = writeln!(lines, "{gap}{text}");
        for Neighbour { index, cosine } in nearest {
            let _ = writeln!(lines, "  {cosine:.4}  {}", others[*index]);
        }
    }
    Ok(lines)
}

fn json_lines(values: impl Iterator<Item = impl Serialize>) -> Result<String> {
    let lines = values.map(|value| Ok(serde_json::to_string(&value)? + "\n"));
    lines.collect()
}
