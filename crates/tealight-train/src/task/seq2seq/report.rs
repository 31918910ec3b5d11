//! The scores of the targets that a model writes for held-out pairs.

use serde_json::{Value, json};
use tealight_model::models::seq2seq::Seq2Seq as Model;

use super::{Pair, Seq2Seq};
use crate::error::Result;
use crate::task::evaluate::losses;
use crate::task::report::{Report, held_out_if};
use crate::task::table::thousands;

/// Pairs that the report shows with the output of the model.
const N_SHOWN: usize = 5;

/// The share of the sources for which greedy decoding writes exactly the target; with teacher forcing, the share of
/// target tokens, the end token included, to which the model gives the highest probability, and their cross-entropy in
/// nats.
pub(super) fn report(task: &Seq2Seq, model: &Model) -> Result<Report> {
    let metrics = losses(task, model)?;
    let mean = |name| (name, metrics.mean(name).unwrap_or(f64::NAN));
    let pairs = &task.data.validation;
    let outputs = task.outputs(model, pairs)?;
    let (right, wrong): (Vec<_>, Vec<_>) =
        pairs.iter().zip(&outputs).partition(|(pair, output)| pair.target == **output);
    let exact_match = right.len() as f64 / pairs.len() as f64;
    // Mistakes first.
    let shown: Vec<_> = wrong.into_iter().chain(right).take(N_SHOWN).collect();
    let examples = shown.iter().map(|(pair, output)| {
        let Pair { source, target } = pair;
        json!({ "source": source, "target": target, "output": output })
    });

    let mut report = Report::new(&[
        ("exact_match", "exact match"),
        ("token_accuracy", "token accuracy"),
        ("loss", "loss"),
    ]);
    report.model([("exact_match", exact_match), mean("token_accuracy"), mean("loss")]);
    report.value("n_pairs", pairs.len());
    let error = report.standard_error("exact_match", pairs.len());
    report.value("examples", examples.collect::<Vec<Value>>());
    let n = thousands(pairs.len() as u64);
    let held_out = held_out_if(!task.is_test);
    report.footnote =
        format!("over {n} pairs{held_out}; standard error of the exact match {error:.4}");
    report.section(&lines(&shown));
    Ok(report)
}

/// A line for each pair: the source, the output and, unless that is right, the target.
fn lines(shown: &[(&Pair, &String)]) -> String {
    let width = shown.iter().map(|(pair, _)| pair.source.chars().count()).max().unwrap_or(0);
    let line = |(Pair { source, target }, output): &(&Pair, &String)| {
        let is_right = target == *output;
        let expected = if is_right { String::new() } else { format!("   (expected {target})") };
        format!("{source:<width$} → {output}{expected}\n")
    };
    shown.iter().map(line).collect()
}
