//! What a causal language model comes to, on all of the held-out text.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;

use serde::Serialize;
use tealight_model::Mode;
use tealight_model::generation::{Sampling, Strategy};
use tealight_model::models::causal_lm;
use tealight_ops::rng::{Purpose, Stream};

use super::CausalLm;
use crate::data::text::tokenizer::Specials;
use crate::error::Result;
use crate::inference::continuation::Settings;
use crate::task::Task;
use crate::task::metrics::{Measures, Metrics};

/// Tokens of the sample.
const SAMPLE_TOKENS: usize = 200;

/// How well the next token of held-out text is guessed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Mean cross-entropy of a token, in nats, over all of the held-out text.
    pub loss: f64,
    /// exp(loss).
    pub perplexity: f64,
    /// The cross-entropy of the text for each of its bytes in UTF-8, in bits, that of the marks between
    /// documents included: comparable whatever the tokenizer.
    pub bits_per_byte: f64,
    /// The share of tokens whose likeliest guess is right.
    pub accuracy: f64,
    /// Tokens that were guessed.
    pub n_tokens: u64,
    /// The entropy of the tokens by how common they are, in nats: what a guess that reads nothing comes
    /// to.
    pub unigram_loss: f64,
    /// What the model writes from nothing, or from the first token of the held-out text where the tokenizer
    /// has none to begin with.
    pub sample: String,
}

impl Report {
    pub(super) fn new(task: &CausalLm, model: &causal_lm::CausalLm) -> Result<Self> {
        let Guesses { metrics, counts } = guesses(task, model)?;
        let n_tokens: u64 = counts.values().sum();
        let share = |count: u64| count as f64 / n_tokens as f64;
        let loss = metrics.mean("loss").unwrap_or(f64::NAN);
        let n_bytes = task.texts.validation().n_predicted_bytes();
        Ok(Self {
            loss,
            perplexity: loss.exp(),
            bits_per_byte: loss * n_tokens as f64 / LN_2 / n_bytes,
            accuracy: metrics.mean("accuracy").unwrap_or(f64::NAN),
            n_tokens,
            unigram_loss: counts.values().map(|&n| -share(n) * share(n).ln()).sum(),
            sample: sample(task, model)?,
        })
    }
}

/// What came of all the held-out text.
struct Guesses {
    metrics: Metrics,
    /// How often each token was to be guessed.
    counts: BTreeMap<u32, u64>,
}

fn guesses(task: &CausalLm, model: &causal_lm::CausalLm) -> Result<Guesses> {
    let (mut measures, mut counts) = (Measures::default(), BTreeMap::new());
    let (all, n) = (task.texts.validation(), task.texts.evaluation_batch());
    for first in (0..all.n()).step_by(n as usize) {
        let sequences: Vec<_> = (first..all.n().min(first + n)).map(|at| all.at(at)).collect();
        let loss = task.loss(model, &task.cut(&sequences)?, Mode::Eval)?;
        measures.merge(loss.measures());
        let labels = sequences.iter().flat_map(super::successors);
        for id in labels.filter_map(|id| u32::try_from(id).ok()) {
            *counts.entry(id).or_insert(0) += 1;
        }
    }
    Ok(Guesses { metrics: measures.read()?, counts })
}

/// The same in every run of the same model.
fn sample(task: &CausalLm, model: &causal_lm::CausalLm) -> Result<String> {
    let Some(beginning) = beginning(task)? else { return Ok(String::new()) };
    let sampling = Sampling { temperature: 0.8, ..Sampling::default() };
    let settings = Settings {
        strategy: Strategy::Sample { stream: Stream::new(0, Purpose::Sampling), sampling },
        max_tokens: SAMPLE_TOKENS,
        stop: Vec::new(),
        n: 1,
    };
    let continuer = task.continuer(model);
    let written = continuer.continue_text(&beginning, &settings, &mut |_, _| {})?;
    let written: String = written.into_iter().map(|one| one.text).collect();
    Ok(beginning + &written)
}

/// Nothing; or where the tokenizer has no token to begin with, the first of the held-out text, as many as
/// make whole characters.
fn beginning(task: &CausalLm) -> Result<Option<String>> {
    let tokenizer = task.tokenizer();
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
