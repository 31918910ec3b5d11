//! The report of a classifier.

use std::path::Path;

use tealight_train::task::classify::{Classify, LabelScore, Report};

use super::presented::Presented;
use crate::terminal::numbers::thousands;
use crate::terminal::table::Table;

/// Labels up to which the confusion matrix is shown: it has a column for each.
const MAX_COLUMNS: usize = 12;

impl Presented for Classify {
    fn table(report: &Report) -> String {
        let mut scores = Table::new(["", "accuracy", "macro F1", "NLL"]);
        let of = |score: f64| format!("{score:.4}");
        let none = String::new;
        scores.row(["majority".to_owned(), of(report.majority_accuracy), none(), none()]);
        let Report { accuracy, macro_f1, nll, .. } = *report;
        scores.row(["transformer".to_owned(), of(accuracy), of(macro_f1), of(nll)]);
        format!(
            "{scores}over {} texts held out; standard error of the accuracy {:.4}\n\n{}{}",
            thousands(report.n_texts as u64),
            report.accuracy_standard_error,
            by_label(&report.labels),
            confusion(report)
        )
    }

    fn next_command(run: &Path) -> String {
        format!("tealight classify {} \"…\"", run.display())
    }
}

fn by_label(labels: &[LabelScore]) -> Table {
    let mut table = Table::new(["label", "texts", "precision", "recall", "F1"]);
    for LabelScore { label, precision, recall, f1, n_texts } in labels {
        let [precision, recall, f1] = [precision, recall, f1].map(|score| format!("{score:.4}"));
        table.row([shown(label), thousands(*n_texts), precision, recall, f1]);
    }
    table
}

/// A row for each label, a column for what was said instead; nothing if there are too many.
fn confusion(report: &Report) -> String {
    let labels: Vec<String> = report.labels.iter().map(|score| shown(&score.label)).collect();
    if labels.len() > MAX_COLUMNS {
        return String::new();
    }
    let heading = std::iter::once("label ╲ said".to_owned()).chain(labels.clone()).collect();
    let mut table = Table::with_heading(heading);
    for (label, row) in labels.into_iter().zip(&report.confusion) {
        table.push(std::iter::once(label).chain(row.iter().map(|&n| thousands(n))).collect());
    }
    format!("\n{table}")
}

/// A label in a cell.
fn shown(label: &str) -> String {
    label.escape_debug().to_string()
}
