//! The scores of the targets that a model writes for held-out pairs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;
use tealight_model::models::seq2seq::Seq2Seq as Model;

use super::{Pair, Seq2Seq};
use crate::error::Result;
use crate::task::TaskReport;
use crate::task::evaluate::losses;
use crate::task::metrics::by_name;
use crate::task::scores::standard_error;
use crate::task::table::{Table, thousands};

/// Pairs that the report shows with the output of the model.
const N_SHOWN: usize = 5;

/// Scores on the held-out pairs, by the names in `--json`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Share of the sources for which greedy decoding writes exactly the target.
    pub exact_match: f64,
    /// Token accuracy with teacher forcing: the share of target tokens, the end token included, to which the
    /// model gives the highest probability.
    pub token_accuracy: f64,
    /// Cross-entropy per token, in nats.
    pub loss: f64,
    /// Pairs evaluated.
    pub n_pairs: usize,
    /// Standard error of `exact_match`.
    pub exact_match_standard_error: f64,
    /// Some of the pairs with the outputs, mistakes first.
    pub examples: Vec<Example>,
}

/// A pair with the output of the model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Example {
    /// The input.
    pub source: String,
    /// The expected output.
    pub target: String,
    /// The output.
    pub output: String,
}

impl TaskReport<Seq2Seq> for Report {
    fn new(task: &Seq2Seq, model: &Model) -> Result<Self> {
        let metrics = losses(task, model)?;
        let mean = |name| metrics.mean(name).unwrap_or(f64::NAN);
        let pairs = &task.data.validation;
        let examples = pairs.iter().cloned().zip(task.outputs(model, pairs)?);
        let examples =
            examples.map(|(Pair { source, target }, output)| Example { source, target, output });
        let (right, wrong): (Vec<_>, Vec<_>) =
            examples.partition(|example| example.target == example.output);
        let n = pairs.len() as f64;
        let exact_match = right.len() as f64 / n;
        Ok(Self {
            exact_match,
            token_accuracy: mean("token_accuracy"),
            loss: mean("loss"),
            n_pairs: pairs.len(),
            exact_match_standard_error: standard_error(exact_match, pairs.len()),
            examples: wrong.into_iter().chain(right).take(N_SHOWN).collect(),
        })
    }

    fn metrics(&self) -> BTreeMap<String, f64> {
        let Self { exact_match, token_accuracy, loss, .. } = *self;
        by_name([("exact_match", exact_match), ("token_accuracy", token_accuracy), ("loss", loss)])
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut scores = Table::new(["", "exact match", "token accuracy", "loss"]);
        let Self { exact_match, token_accuracy, loss, .. } = *self;
        let cells = [exact_match, token_accuracy, loss].map(|score| format!("{score:.4}"));
        let [exact_match, token_accuracy, loss] = cells;
        scores.row(["transformer".to_owned(), exact_match, token_accuracy, loss]);
        let (n, error) = (thousands(self.n_pairs as u64), self.exact_match_standard_error);
        writeln!(
            f,
            "{scores}over {n} pairs held out; standard error of the exact match {error:.4}\n"
        )?;
        let width = self.examples.iter().map(|one| one.source.chars().count()).max().unwrap_or(0);
        for Example { source, target, output } in &self.examples {
            let is_right = target == output;
            let expected = if is_right { String::new() } else { format!("   (expected {target})") };
            writeln!(f, "{source:<width$} → {output}{expected}")?;
        }
        Ok(())
    }
}
