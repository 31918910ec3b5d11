//! What the task of pairs shows at the end.

use std::path::Path;

use tealight_train::task::seq2seq::{Example, Report, Seq2Seq};

use super::presented::Presented;
use crate::terminal::numbers::thousands;
use crate::terminal::table::Table;

impl Presented for Seq2Seq {
    fn table(report: &Report) -> String {
        let mut scores = Table::new(["", "exact match", "token accuracy", "loss"]);
        let Report { exact_match, token_accuracy, loss, .. } = *report;
        let cells = [exact_match, token_accuracy, loss].map(|score| format!("{score:.4}"));
        let [exact_match, token_accuracy, loss] = cells;
        scores.row(["transformer".to_owned(), exact_match, token_accuracy, loss]);
        format!(
            "{scores}over {} pairs held out; standard error of the exact match {:.4}\n\n{}",
            thousands(report.n_pairs as u64),
            report.exact_match_standard_error,
            examples(&report.examples)
        )
    }

    fn next_command(run: &Path) -> String {
        format!("tealight translate {} \"…\"", run.display())
    }
}

/// A line for each: source, output, and the target where it is another.
fn examples(examples: &[Example]) -> String {
    let width = examples.iter().map(|one| one.source.chars().count()).max().unwrap_or(0);
    let line = |Example { source, target, output }: &Example| {
        let mistake =
            if target == output { String::new() } else { format!("   (should be {target})") };
        format!("{source:<width$} → {output}{mistake}\n")
    };
    examples.iter().map(line).collect()
}
