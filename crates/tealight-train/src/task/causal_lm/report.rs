//! The scores of a causal language model on all of the held-out text.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;
use std::fmt;
use std::ops::ControlFlow;

use serde::Serialize;
use tealight_model::Mode;
use tealight_model::generation::{Sampling, Strategy};
use tealight_model::models::causal_lm::CausalLm as Model;
use tealight_ops::rng::{Purpose, Stream};

use super::CausalLm;
use crate::data::text::tokenizer::Specials;
use crate::error::Result;
use crate::inference::continuation::{Continuer, Settings, Vocabulary};
use crate::inference::or_default_if_not_finite;
use crate::task::metrics::{Measures, Metrics, by_name};
use crate::task::table::{Table, thousands};
use crate::task::text::Texts;
use crate::task::{Task, TaskReport};

/// Tokens of the sample.
const SAMPLE_TOKENS: usize = 200;
/// The temperature at which they are drawn, and the seed.
const TEMPERATURE: f64 = 0.8;
const SEED: u64 = 0;

/// How well the next token of held-out text is predicted.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Mean cross-entropy of a token, in nats, over all of the held-out text.
    pub loss: f64,
    /// exp(loss).
    pub perplexity: f64,
    /// The cross-entropy in bits for each byte of the text in UTF-8, marks between documents included:
    /// comparable between tokenizers.
    pub bits_per_byte: f64,
    /// The share of tokens to which the model gives the highest probability.
    pub accuracy: f64,
    /// Tokens that were predicted.
    pub n_tokens: u64,
    /// The entropy of the distribution of the tokens, in nats: the loss of a prediction that reads nothing.
    pub unigram_loss: f64,
    /// A text that the model generates. It begins at the begin token or, if the tokenizer has none, with the
    /// first tokens of the held-out text.
    pub sample: String,
    /// What the sample begins with, if these are tokens of the held-out text; empty otherwise.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sample_prompt: String,
}

impl TaskReport<CausalLm> for Report {
    fn new(task: &CausalLm, model: &Model) -> Result<Self> {
        let (metrics, counts) = evaluated(task, model)?;
        let n_tokens: u64 = counts.values().sum();
        let share = |count: u64| count as f64 / n_tokens as f64;
        let loss = metrics.mean("loss").unwrap_or(f64::NAN);
        let n_bytes = task.texts.validation.n_predicted_bytes();
        let (sample_prompt, sample) = sample(task, model)?;
        Ok(Self {
            loss,
            perplexity: loss.exp(),
            bits_per_byte: loss * n_tokens as f64 / LN_2 / n_bytes,
            accuracy: metrics.mean("accuracy").unwrap_or(f64::NAN),
            n_tokens,
            unigram_loss: counts.values().map(|&n| -share(n) * share(n).ln()).sum(),
            sample,
            sample_prompt,
        })
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        by_name([
            ("loss", self.loss),
            ("perplexity", self.perplexity),
            ("bits_per_byte", self.bits_per_byte),
            ("accuracy", self.accuracy),
        ])
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { loss, perplexity, bits_per_byte, accuracy, unigram_loss, .. } = *self;
        let heading = ["", "cross-entropy", "perplexity", "bits per byte", "accuracy"];
        let mut table = Table::new(heading);
        let [loss, bits, accuracy] =
            [loss, bits_per_byte, accuracy].map(|number| format!("{number:.4}"));
        table.row(["transformer".to_owned(), loss, format!("{perplexity:.2}"), bits, accuracy]);
        let [loss, perplexity] =
            [format!("{unigram_loss:.4}"), format!("{:.2}", unigram_loss.exp())];
        let none = || "–".to_owned();
        table.row(["tokens by frequency".to_owned(), loss, perplexity, none(), none()]);
        let n = thousands(self.n_tokens);
        writeln!(f, "{table}over all {n} tokens of held-out text")?;
        let Self { sample, sample_prompt: prompt, .. } = self;
        if sample.strip_prefix(prompt).unwrap_or(sample).trim().is_empty() {
            return Ok(());
        }
        let after = if prompt.is_empty() {
            String::new()
        } else {
            format!(" after `{}`, the beginning of that text", prompt.escape_debug())
        };
        let sample = sample.trim_end();
        writeln!(
            f,
            "\na text that the model wrote{after} (temperature {TEMPERATURE}, seed {SEED}):\n\n{sample}"
        )
    }
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
