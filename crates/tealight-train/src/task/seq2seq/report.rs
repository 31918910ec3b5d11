//! How good a model of pairs is, on those that were held out.

use serde::Serialize;
use tealight_model::generation::Strategy;
use tealight_model::models::seq2seq;

use super::Seq2Seq;
use crate::error::Result;
use crate::task::evaluate::losses;

/// Pairs that are shown with what the model writes.
const N_SHOWN: usize = 5;

/// Scores on the pairs that were held out, by the names that `--json` gives them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Share of the sources for which exactly the target is written, taking the likeliest token each
    /// time.
    pub exact_match: f64,
    /// Share of the target's tokens, the end included, that are the likeliest after those before them.
    pub token_accuracy: f64,
    /// Cross-entropy per token, in nats.
    pub loss: f64,
    /// Pairs evaluated.
    pub n_pairs: usize,
    /// Standard error of `exact_match`.
    pub exact_match_standard_error: f64,
    /// Some of the pairs with what was written: mistakes first.
    pub examples: Vec<Example>,
}

/// A pair, and what the model writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Example {
    /// What is read.
    pub source: String,
    /// What should be written.
    pub target: String,
    /// What is written.
    pub output: String,
}

impl Report {
    /// Evaluates `model`.
    pub fn new(task: &Seq2Seq, model: &seq2seq::Seq2Seq) -> Result<Self> {
        let metrics = losses(task, model)?;
        let mean = |name| metrics.mean(name).unwrap_or(f64::NAN);
        let pairs = task.validation();
        let sources: Vec<&str> = pairs.iter().map(|pair| pair.source.as_str()).collect();
        let outputs = task.translate(model, &sources, &Strategy::Greedy, None)?;
        let examples = pairs.iter().zip(outputs).map(|(pair, outputs)| Example {
            source: pair.source.clone(),
            target: pair.target.clone(),
            output: outputs.into_iter().next().map(|best| best.text).unwrap_or_default(),
        });
        let (right, wrong): (Vec<_>, Vec<_>) =
            examples.partition(|example| example.target == example.output);
        let n = pairs.len() as f64;
        let exact_match = right.len() as f64 / n;
        Ok(Self {
            exact_match,
            token_accuracy: mean("token_accuracy"),
            loss: mean("loss"),
            n_pairs: pairs.len(),
            exact_match_standard_error: (exact_match * (1. - exact_match) / n).sqrt(),
            examples: wrong.into_iter().chain(right).take(N_SHOWN).collect(),
        })
    }
}
