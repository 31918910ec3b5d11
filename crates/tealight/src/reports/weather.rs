//! What the weather task shows at the end.

use std::path::Path;

use tealight_train::task::weather::{Report, Weather};

use super::presented::Presented;
use crate::terminal::numbers::thousands;
use crate::terminal::table::Table;

impl Presented for Weather {
    fn table(report: &Report) -> String {
        table(report)
    }

    fn next_command(run: &Path) -> String {
        format!("tealight forecast {} --start \"☀️🌧️☁️\" --days 14", run.display())
    }
}

/// The model between the baselines and the limit.
fn table(report: &Report) -> String {
    let mut table = Table::new(["", "accuracy", "NLL"]);
    let mut row = |name: &str, accuracy: f64, nll: f64| {
        table.row([name.to_owned(), format!("{accuracy:.4}"), format!("{nll:.4}")]);
    };
    let linear = match report.linear_examples {
        Some(n) => format!("linear ({} examples)", thousands(n as u64)),
        None => "linear (its ceiling)".to_owned(),
    };
    let lookup = format!("lookup table ({} examples)", thousands(report.lookup_examples as u64));
    row("majority", report.majority_accuracy, report.majority_nll);
    row(&linear, report.linear_accuracy, report.linear_nll);
    row(&lookup, report.lookup_accuracy, report.lookup_nll);
    row("transformer", report.accuracy, report.nll);
    if let (Some(accuracy), Some(nll)) = (report.bayes_accuracy, report.bayes_nll) {
        row("Bayes limit", accuracy, nll);
    }
    format!("{table}{}\n", footnote(report))
}

fn footnote(report: &Report) -> String {
    let n = thousands(report.n_windows as u64);
    if report.exact {
        return format!("exact: all {n} possible windows, each weighed by its true probability");
    }
    // Weather from a file: the windows are also those that early stopping and `select` look at.
    let windows =
        if report.bayes_nll.is_none() { "windows held out for validation" } else { "windows" };
    format!(
        "over {n} {windows}; standard error of the transformer {:.4} and {:.4}",
        report.accuracy_standard_error, report.nll_standard_error
    )
}
