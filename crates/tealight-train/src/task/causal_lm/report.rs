//! What a causal language model comes to, on all of the held-out text.

use std::collections::BTreeMap;
use std::f64::consts::LN_2;

use serde::Serialize;
use tealight_model::Mode;
use tealight_model::generation::{Sampling, Strategy};
use tealight_model::models::causal_lm;
use tealight_ops::rng::{Purpose, Stream};

use super::CausalLm;
use crate::Metrics;
use crate::continuation::Settings;
use crate::error::Result;
use crate::evaluate::scalar;
use crate::task::Task;
use crate::text::tokenizer::Specials;

/// Tokens of the sample.
const SAMPLE_TOKENS: usize = 200;

/// How well the next token of held-out text is guessed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Mean cross-entropy of a token, in nats, over all of the held-out text.
    pub loss: f64,
    /// exp(loss).
    pub perplexity: f64,
    /// The cross-entropy of the text for each of its bytes, in bits: comparable whatever the tokenizer.
    pub bits_per_byte: f64,
    /// The share of tokens whose likeliest guess is right.
    pub accuracy: f64,
    /// Tokens that were guessed.
    pub n_tokens: u64,
    /// The entropy of the tokens by how common they are, in nats: what a guess that reads nothing comes
    /// to.
    pub unigram_loss: f64,
    /// What the model writes from nothing.
    pub sample: String,
}

impl Report {
    pub(super) fn new(task: &CausalLm, model: &causal_lm::CausalLm) -> Result<Self> {
        let (mut metrics, mut counts, mut n_bytes) = (Metrics::default(), BTreeMap::new(), 0);
        let (all, n) = (task.texts.validation(), task.texts.evaluation_batch());
        for first in (0..all.n()).step_by(n as usize) {
            let sequences: Vec<_> = (first..all.n().min(first + n)).map(|at| all.at(at)).collect();
            let loss = task.loss(model, &task.cut(&sequences)?, Mode::Eval)?;
            metrics.add("loss", scalar(&loss.sum)?, loss.count);
            metrics.merge(&loss.metrics);
            for sequence in &sequences {
                let labels: Vec<u32> = super::successors(sequence)
                    .into_iter()
                    .filter_map(|id| id.try_into().ok())
                    .collect();
                n_bytes += task.tokenizer().decode(&labels, Specials::Skip)?.len();
                for id in labels {
                    *counts.entry(id).or_insert(0_u64) += 1;
                }
            }
        }
        let n_tokens: u64 = counts.values().sum();
        let share = |count: u64| count as f64 / n_tokens as f64;
        let loss = metrics.mean("loss").unwrap_or(f64::NAN);
        Ok(Self {
            loss,
            perplexity: loss.exp(),
            bits_per_byte: loss * n_tokens as f64 / LN_2 / n_bytes as f64,
            accuracy: metrics.mean("accuracy").unwrap_or(f64::NAN),
            n_tokens,
            unigram_loss: counts.values().map(|&n| -share(n) * share(n).ln()).sum(),
            sample: sample(task, model)?,
        })
    }
}

/// The same in every run of the same model.
fn sample(task: &CausalLm, model: &causal_lm::CausalLm) -> Result<String> {
    let sampling = Sampling { temperature: 0.8, ..Sampling::default() };
    let settings = Settings {
        strategy: Strategy::Sample { stream: Stream::new(0, Purpose::Sampling), sampling },
        max_tokens: SAMPLE_TOKENS,
        stop: Vec::new(),
        n: 1,
    };
    let written = task.continuer(model).continue_text("", &settings, &mut |_, _| {})?;
    Ok(written.into_iter().map(|one| one.text).collect())
}
