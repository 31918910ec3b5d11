//! The scores of a causal language model on all of the held-out text.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;
use std::ops::ControlFlow;

use tealight_model::Mode;
use tealight_model::generation::{Sampling, Strategy};
use tealight_model::models::causal_lm::CausalLm as Model;
use tealight_ops::rng::{Purpose, Stream};

use super::CausalLm;
use crate::data::shown::on_one_line;
use crate::data::text::tokenizer::Specials;
use crate::error::Result;
use crate::inference::continuation::{Continuer, Settings, Vocabulary};
use crate::inference::or_default_if_not_finite;
use crate::task::Task;
use crate::task::metrics::{Measures, Metrics};
use crate::task::report::Report;
use crate::task::report::reference::Predictor;
use crate::task::table::thousands;
use crate::task::text::Texts;

/// Tokens of the sample.
const SAMPLE_TOKENS: usize = 200;
/// The temperature at which they are drawn, and the seed.
const TEMPERATURE: f64 = 0.8;
const SEED: u64 = 0;

const COLUMNS: [(&str, &str); 4] = [
    ("loss", "cross-entropy"),
    ("perplexity", "perplexity"),
    ("bits_per_byte", "bits per byte"),
    ("accuracy", "accuracy"),
];

/// The cross-entropy of a token, in nats, over all of the held-out text, and how often it is the likeliest. Bits per
/// byte are those of the text in UTF-8, marks between documents included: comparable between tokenizers. A text that
/// the model generates begins at the begin token or, if the tokenizer has none, with the first tokens of the held-out
/// text.
pub(super) fn report(task: &CausalLm, model: &Model) -> Result<Report> {
    let (metrics, counts) = evaluated(task, model)?;
    let n_tokens: u64 = counts.values().sum();
    let share = |count: u64| count as f64 / n_tokens as f64;
    let loss = metrics.mean("loss").unwrap_or(f64::NAN);
    let n_bytes = task.texts.validation.n_predicted_bytes();
    let entropy: f64 = counts.values().map(|&n| -share(n) * share(n).ln()).sum();
    let (prompt, sample) = sample(task, model)?;

    let mut report = Report::new(&COLUMNS);
    report.no_score = "–";
    report.model([
        ("loss", loss),
        ("perplexity", loss.exp()),
        ("bits_per_byte", loss * n_tokens as f64 / LN_2 / n_bytes),
        ("accuracy", metrics.mean("accuracy").unwrap_or(f64::NAN)),
    ]);
    report.value("n_tokens", n_tokens);
    report.row(Predictor::Unigram, "tokens by frequency", [("loss", entropy)]);
    report.value("sample", &sample);
    if !prompt.is_empty() {
        report.value("sample_prompt", &prompt);
    }
    report.footnote = format!("over all {} tokens of held-out text", thousands(n_tokens));
    if let Some(text) = shown(&prompt, &sample) {
        report.section(&text);
    }
    Ok(report)
}

/// A sample with its heading; `None` if the model wrote nothing after the prompt.
pub(super) fn shown(prompt: &str, sample: &str) -> Option<String> {
    if sample.strip_prefix(prompt).unwrap_or(sample).trim().is_empty() {
        return None;
    }
    let after = if prompt.is_empty() {
        String::new()
    } else {
        format!(" after `{}`, the beginning of that text", on_one_line(prompt))
    };
    let sample = sample.trim_end();
    Some(format!(
        "a text that the model wrote{after} (temperature {TEMPERATURE}, seed {SEED}):\n\n{sample}\n"
    ))
}

/// The metrics over all the held-out text, and how often each token is a label.
fn evaluated(task: &CausalLm, model: &Model) -> Result<(Metrics, BTreeMap<u32, u64>)> {
    let (mut measures, mut counts) = (Measures::default(), BTreeMap::new());
    let (all, n) = (&task.texts.validation, task.texts.evaluation_batch());
    for first in (0..all.n()).step_by(n as usize) {
        let sequences: Vec<_> = (first..all.n().min(first + n)).map(|at| all.at(at)).collect();
        let loss = task.loss(model, &task.batch_of(&sequences)?, Mode::Eval)?;
        measures.merge(loss.measures());
        let labels = sequences.iter().flat_map(super::successors);
        for id in labels.filter_map(|id| u32::try_from(id).ok()) {
            *counts.entry(id).or_insert(0) += 1;
        }
    }
    Ok((measures.read()?, counts))
}

/// A text from the model, with a fixed seed: what it begins with, and the whole of it.
fn sample(task: &CausalLm, model: &Model) -> Result<(String, String)> {
    let Some(beginning) = beginning(task)? else { return Ok((String::new(), String::new())) };
    let sampling = Sampling { temperature: TEMPERATURE, ..Sampling::default() };
    let settings = Settings {
        strategy: Strategy::Sample { stream: Stream::new(SEED, Purpose::Sampling), sampling },
        max_tokens: SAMPLE_TOKENS,
        stop: Vec::new(),
        n: 1,
    };
    let Texts { tokenizer, device, .. } = &task.texts;
    let tokenizer = &task.config.for_prompts(tokenizer)?;
    let continuer = Continuer { model, tokenizer, device, vocabulary: Vocabulary::Text };
    let written =
        continuer.continue_text(&beginning, &settings, &mut |_, _| ControlFlow::Continue(()));
    let written: String =
        or_default_if_not_finite(written)?.into_iter().map(|one| one.text).collect();
    let whole = format!("{beginning}{written}");
    Ok((beginning, whole))
}

/// An empty prompt; if the tokenizer has no token to begin with, the shortest beginning of the held-out text
/// that is whole characters.
fn beginning(task: &CausalLm) -> Result<Option<String>> {
    let tokenizer = &task.texts.tokenizer;
    if tokenizer.special().begin.or(tokenizer.special().end).is_some() {
        return Ok(Some(String::new()));
    }
    let ids = task.texts.held_out(0).ids;
    for n in 1..=ids.len() {
        let text = tokenizer.decode(&ids[..n], Specials::Skip)?;
        if !text.contains(char::REPLACEMENT_CHARACTER) && !tokenizer.encode_plain(&text)?.is_empty()
        {
            return Ok(Some(text));
        }
    }
    Ok(None)
}
