//! Where the trained model is wrong: its most confident mistakes, the confusion matrix, the scores of each class.

use maud::{Markup, html};
use serde_json::{Map, Value};

use super::read::RunData;
use super::read::plot::Plot;
use super::values::list;

/// The values of a report that are shown here.
pub(super) const IN_REPORT: [&str; 4] = ["mistakes", "examples", "confusion", "labels"];
/// Classes of a matrix that is shown.
const MAX_CLASSES: usize = 40;

/// The section of a run; `None` if its report says nothing of mistakes.
pub(super) fn of_one(run: &RunData) -> Option<Markup> {
    let none = Map::new();
    let report = run.report.as_ref().and_then(Value::as_object).unwrap_or(&none);
    of_report(report, &run.plots)
}

/// The same of a part of a report, such as that of test data, with pictures of it.
pub(super) fn of_report(report: &Map<String, Value>, plots: &[Plot]) -> Option<Markup> {
    let is_shown = !plots.is_empty() || IN_REPORT.iter().any(|key| report.contains_key(*key));
    let rows = |key: &str| report.get(key).and_then(Value::as_array).map_or(&[][..], |rows| rows);
    is_shown.then(|| html! {
        @for plot in plots { (plot.figure()) }
        @match (rows("mistakes"), plots) {
            ([], []) if report.contains_key("mistakes") => p { "There are no mistakes." },
            ([], _) => {},
            (mistakes, []) => (list("The most confident mistakes", mistakes)),
            // The pictures show the same.
            (mistakes, _) => details { summary { "The same as a list" } (list("The most confident mistakes", mistakes)) },
        }
        @if !rows("examples").is_empty() { (list("Examples, mistakes first", rows("examples"))) }
        @if !rows("confusion").is_empty() { (confusion(rows("confusion"), &labels(rows("labels")))) }
        @if !rows("labels").is_empty() { (list("Scores of each class", rows("labels"))) }
    })
}

/// The names of the classes, for the confusion matrix.
fn labels(scores: &[Value]) -> Vec<&str> {
    scores.iter().filter_map(|label| label["label"].as_str()).collect()
}

/// How often a class was taken for another: rows are the true classes, and the background shows shares of a row.
fn confusion(rows: &[Value], labels: &[&str]) -> Markup {
    let rows: Vec<Vec<u64>> = rows
        .iter()
        .map(|row| row.as_array().into_iter().flatten().filter_map(Value::as_u64).collect())
        .collect();
    let name = |at: usize| labels.get(at).map_or_else(|| at.to_string(), |name| (*name).to_owned());
    let level = |n: u64, row: &[u64]| (10 * n).div_ceil(row.iter().sum::<u64>().max(1));
    html! {
        h3 { "Confusion matrix" }
        @if rows.len() > MAX_CLASSES {
            p { "With " (rows.len()) " classes the matrix is in report.json only." }
        } @else {
            p.detail {
                "Rows are true classes, columns are predicted ones. " span.is-right { "Blue is right" } ", "
                span.is-wrong { "red is wrong" } "; the stronger, the larger the share of the row."
            }
            div.scroll { table.confusion {
                thead { tr { th {} @for at in 0..rows.len() { th scope="col" { (name(at)) } } } }
                tbody { @for (at, row) in rows.iter().enumerate() { tr {
                    th scope="row" { (name(at)) }
                    @for (column, &n) in row.iter().enumerate() {
                        td class=[(at == column).then_some("right")] data-level=(level(n, row)) { (n) }
                    }
                } } }
            } }
        }
    }
}
