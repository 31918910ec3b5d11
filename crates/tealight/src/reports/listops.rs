//! What ListOps shows at the end.

use std::path::Path;

use tealight_train::task::listops::{Bin, ListOps, Report};

use super::presented::Presented;
use crate::terminal::numbers::thousands;
use crate::terminal::table::Table;

impl Presented for ListOps {
    fn table(report: &Report) -> String {
        let mut scores = Table::new(["", "accuracy", "NLL"]);
        let mut row = |name: &str, accuracy: f64, nll: String| {
            scores.row([name.to_owned(), format!("{accuracy:.4}"), nll]);
        };
        row("majority", report.majority_accuracy, String::new());
        row("outermost operation", report.root_operator_accuracy, String::new());
        row("transformer", report.accuracy, format!("{:.4}", report.nll));
        format!(
            "{scores}over {} test expressions; standard error of the transformer {:.4}\n\n{}\n{}",
            thousands(report.n_test as u64),
            report.accuracy_standard_error,
            bins("depth", &report.by_depth),
            bins("tokens", &report.by_length)
        )
    }

    fn next_command(run: &Path) -> String {
        format!("tealight evaluate {} --json", run.display())
    }
}

/// A line for each depth, or range of lengths.
fn bins(heading: &str, bins: &[Bin]) -> Table {
    let mut table = Table::new([heading, "expressions", "accuracy"]);
    for Bin { from, to, n, accuracy } in bins {
        let range = if from == to { from.to_string() } else { format!("{from}–{to}") };
        table.row([range, thousands(*n as u64), format!("{accuracy:.4}")]);
    }
    table
}
