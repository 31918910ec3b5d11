//! `tealight generate MODEL PROMPT`: continues a text.

use std::ops::ControlFlow;

use anyhow::Result;
use serde_json::json;
use tealight_model::generation::{Sampling, Strategy};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::inference::continuation::{Continuation, Settings};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::text_generation::TextGeneration;

use crate::args::predict::Generate;
use crate::runs::input_warnings::warn_of_unknown;
use crate::runs::load::open_model;
use crate::runs::number_format::NumberFormat;
use crate::terminal::input::read_stdin;
use crate::terminal::output::{print, print_json};

pub(crate) fn run(args: &Generate) -> Result<()> {
    let settings = Settings {
        strategy: strategy(args),
        max_tokens: args.max_tokens,
        stop: args.stop.clone(),
        n: args.n,
    };
    NumberFormat::for_device(args.computation.precision, args.model.weights.device)
        .warn_if_replaced();
    let (model, device) = open_model(&args.model)?;
    let pipeline = TextGeneration::open(&model, &device)?;
    let continuer = pipeline.continuer();
    let prompt = match args.prompt.as_str() {
        "-" => read_stdin()?.trim_end_matches(['\r', '\n']).to_owned(),
        prompt => prompt.to_owned(),
    };
    warn_of_unknown(continuer.tokenizer, &[&prompt])?;
    let streams = settings.n == 1 && !args.json;
    if streams {
        print(&prompt)?;
    }
    let mut printed = Ok(());
    let mut on_text = |_: usize, text: &str| {
        if streams && printed.is_ok() {
            printed = print(text);
        }
        ControlFlow::Continue(())
    };
    let continuations = continuer.continue_text(&prompt, &settings, &mut on_text)?;
    printed?;
    match (args.json, streams) {
        (true, _) => print_json(&json!({ "prompt": prompt, "continuations": continuations })),
        (_, true) => print("\n"),
        (..) => print(&as_text(&prompt, &continuations)),
    }
}

fn strategy(args: &Generate) -> Strategy {
    let Generate { temperature, top_k, top_p, min_p, repetition_penalty, .. } = *args;
    let is_greedy = args.greedy || temperature == 0.;
    // Top-1 sampling is greedy decoding that still applies the repetition penalty.
    let sampling = if is_greedy {
        Sampling { top_k: Some(1), repetition_penalty, ..Sampling::default() }
    } else {
        Sampling { temperature, top_k, top_p, min_p, repetition_penalty }
    };
    Strategy::Sample { stream: Stream::new(args.seed, Purpose::Sampling), sampling }
}

/// The texts, separated by lines of dashes.
fn as_text(prompt: &str, continuations: &[Continuation]) -> String {
    let texts = continuations.iter().map(|one| format!("{prompt}{}\n", one.text));
    texts.collect::<Vec<_>>().join("---\n")
}
