//! `tealight generate MODEL PROMPT`: what a causal language model goes on with.

use std::io::{Read, Write, stdin, stdout};

use anyhow::{Context, Result, bail};
use serde_json::json;
use tealight_model::generation::{Sampling, Strategy};
use tealight_ops::rng::{Purpose, Stream};
use tealight_train::inference::continuation::{Continuation, Continuer, Settings};

use crate::args::language::Generate;
use crate::runs::load;
use crate::terminal::output::print;

pub(crate) fn run(args: &Generate) -> Result<()> {
    let settings = Settings {
        strategy: strategy(args)?,
        max_tokens: args.max_tokens.get(),
        stop: args.stop.clone(),
        n: args.n,
    };
    let device = &args.model.used.device.open()?;
    let pretrained = load::model(&args.model)?;
    let model = &pretrained.causal_lm(device)?;
    let continuer = Continuer { model, tokenizer: pretrained.tokenizer()?, device };
    let prompt = prompt(&args.prompt)?;
    let streams = settings.n == 1 && !args.json;
    if streams {
        print(&prompt)?;
    }
    let mut failure = Ok(());
    let mut heard = |_: usize, text: &str| {
        if streams && failure.is_ok() {
            failure = print(text).and_then(|()| flush());
        }
    };
    let continuations = continuer.continue_text(&prompt, &settings, &mut heard)?;
    failure?;
    match (args.json, streams) {
        (true, _) => print(&as_json(&prompt, &continuations)),
        (_, true) => print("\n"),
        (..) => print(&as_text(&prompt, &continuations)),
    }
}

fn strategy(args: &Generate) -> Result<Strategy> {
    let Generate { temperature, top_k, top_p, min_p, repetition_penalty, .. } = *args;
    let is_greedy = args.greedy || temperature == 0.;
    // With a penalty, the likeliest of what it leaves.
    let sampling = if is_greedy {
        Sampling { top_k: Some(1), repetition_penalty, ..Sampling::default() }
    } else {
        Sampling { temperature, top_k, top_p, min_p, repetition_penalty }
    };
    if let Some((setting, rule)) = sampling.fault() {
        bail!("`--{}` {rule}", setting.replace('_', "-"));
    }
    Ok(Strategy::Sample { stream: Stream::new(args.seed, Purpose::Sampling), sampling })
}

fn prompt(given: &str) -> Result<String> {
    if given != "-" {
        return Ok(given.to_owned());
    }
    let mut text = String::new();
    stdin().read_to_string(&mut text).context("cannot read standard input")?;
    Ok(text.trim_end_matches(['\r', '\n']).to_owned())
}

/// What is written appears at once. A reader that has left is no error.
fn flush() -> Result<()> {
    match stdout().flush() {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.context("cannot write the result"),
    }
}

/// The texts, with a line of dashes between them.
fn as_text(prompt: &str, continuations: &[Continuation]) -> String {
    let texts = continuations.iter().map(|one| format!("{prompt}{}\n", one.text));
    texts.collect::<Vec<_>>().join("---\n")
}

fn as_json(prompt: &str, continuations: &[Continuation]) -> String {
    format!("{}\n", json!({ "prompt": prompt, "continuations": continuations }))
}
