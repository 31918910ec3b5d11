//! The final evaluation of a run: the numbers of `report.json`, whatever the task puts there.

use std::collections::BTreeSet;

use maud::{Markup, html};
use serde_json::{Map, Value};
use tealight_train::task::report::Predictor;

use super::read::RunData;
use super::text::{metric_name, number, spaced};

/// Rows of a list of objects, and columns of a matrix, that are shown.
const MAX_ROWS: usize = 40;
/// Rows of a list beyond which it is folded.
const MAX_OPEN_ROWS: usize = 12;

/// The section of a finished run; `None` before its final evaluation.
pub(super) fn of_one(run: &RunData) -> Option<Markup> {
    let report = run.report.as_ref()?.as_object()?;
    let summary = run.summary.as_ref();
    let metrics: Vec<&str> = summary
        .into_iter()
        .flat_map(|summary| summary.metrics.keys().map(String::as_str))
        .collect();
    let labels = labels(report);
    let rest = report.iter().filter(|(key, value)| !is_in_first_table(key, value, &metrics));
    let (facts, others): (Vec<_>, Vec<_>) = rest.partition(|(_, value)| is_fact(value));
    Some(html! {
        (against_baselines(run, &metrics))
        @if !facts.is_empty() {
            dl.facts { @for (key, value) in facts { div { dt { (spaced(key)) } dd { (plain(value)) } } } }
        }
        @for (key, value) in others { (item(key, value, &labels)) }
        @if let Some(summary) = summary {
            @for note in &summary.notes { p.warning { (note) } }
        }
    })
}

/// Whether the first table has this value of a report: a metric, or one of a baseline.
fn is_in_first_table(key: &str, value: &Value, metrics: &[&str]) -> bool {
    let (_, metric) = Predictor::of_key(key);
    value.is_null() || key == "commonest" || metrics.contains(&metric)
}

/// The metrics of the run between those of its baselines and of the limit.
fn against_baselines(run: &RunData, metrics: &[&str]) -> Markup {
    let scores = run.reference_scores();
    let of_run = |metric: &str| run.summary.as_ref()?.metrics.get(metric).copied();
    let of_other = |name: &str, metric: &str| {
        let score = scores.iter().find(|score| score.metric == metric && score.name == name);
        score.map(|score| score.value)
    };
    let others = scores.iter().filter(|score| metrics.contains(&&*score.metric));
    let others: BTreeSet<_> = others.map(|score| (score.predictor, &*score.name)).collect();
    let (limits, baselines): (Vec<_>, Vec<_>) =
        others.into_iter().partition(|(predictor, _)| *predictor == Predictor::Bayes);
    let row = |class: &str, name: &str, of: &dyn Fn(&str) -> Option<f64>| {
        html! { tr.(class) {
            th scope="row" { (name) }
            @for metric in metrics { td { (of(metric).map_or_else(|| "–".to_owned(), number)) } }
        } }
    };
    let other = |name: &str| row("baseline", name, &|metric| of_other(name, metric));
    html! {
        div.scroll { table {
            caption { "Final evaluation" }
            thead { tr { th {} @for metric in metrics { th scope="col" { (metric_name(metric)) } } } }
            tbody {
                @for (_, name) in &baselines { (other(name)) }
                (row("own", Predictor::Model.name(), &of_run))
                @for (_, name) in &limits { (other(name)) }
            }
        } }
    }
}

/// Whether a value is shown with its name alone.
fn is_fact(value: &Value) -> bool {
    match value {
        Value::String(text) => text.len() <= 60,
        Value::Array(_) | Value::Object(_) => false,
        _ => true,
    }
}

/// The names of the classes, for the confusion matrix.
fn labels(report: &Map<String, Value>) -> Vec<String> {
    let labels = report.get("labels").and_then(Value::as_array).into_iter().flatten();
    labels.filter_map(|label| Some(label.get("label")?.as_str()?.to_owned())).collect()
}

/// A further value of the report.
fn item(key: &str, value: &Value, labels: &[String]) -> Markup {
    match value {
        Value::Array(items) if key == "confusion" => confusion(items, labels),
        Value::Array(items) if items.iter().all(Value::is_object) && !items.is_empty() => {
            list(key, items)
        }
        Value::Object(object) => html! {
            h3 { (spaced(key)) }
            dl.facts { @for (key, value) in object { div { dt { (spaced(key)) } dd { (plain(value)) } } } }
        },
        Value::Array(items) if items.is_empty() => html! {},
        _ => html! { h3 { (spaced(key)) } pre.text { (plain(value)) } },
    }
}

/// A list of objects as a table with a column for each key.
fn list(key: &str, items: &[Value]) -> Markup {
    let keys: Vec<&String> =
        items.iter().find_map(Value::as_object).map_or_else(Vec::new, |one| one.keys().collect());
    let rows = html! {
        div.scroll { table {
            thead { tr { @for key in &keys { th scope="col" { (spaced(key)) } } } }
            tbody { @for item in items.iter().take(MAX_ROWS) { tr {
                @for key in &keys { td { (item.get(key.as_str()).map_or_else(String::new, plain)) } }
            } } }
        } }
        @if items.len() > MAX_ROWS { p.detail { "and " (items.len() - MAX_ROWS) " more" } }
    };
    html! {
        h3 { (spaced(key)) }
        @if items.len() > MAX_OPEN_ROWS {
            details { summary { (items.len()) " rows" } (rows) }
        } @else {
            (rows)
        }
    }
}

/// How often a class was taken for another: rows are the true classes, and the background shows shares of a row.
fn confusion(rows: &[Value], labels: &[String]) -> Markup {
    let rows: Vec<Vec<u64>> = rows
        .iter()
        .map(|row| row.as_array().into_iter().flatten().filter_map(Value::as_u64).collect())
        .collect();
    let name = |at: usize| labels.get(at).cloned().unwrap_or_else(|| at.to_string());
    let level = |n: u64, row: &[u64]| (10 * n).div_ceil(row.iter().sum::<u64>().max(1));
    html! {
        h3 { "confusion" }
        @if rows.len() > MAX_ROWS {
            p { "With " (rows.len()) " classes the matrix is in report.json only." }
        } @else {
            div.scroll { table.confusion {
                caption { "Rows are true classes, columns are predicted ones" }
                thead { tr { th {} @for at in 0..rows.len() { th scope="col" { (name(at)) } } } }
                tbody { @for (at, row) in rows.iter().enumerate() { tr {
                    th scope="row" { (name(at)) }
                    @for (column, &n) in row.iter().enumerate() {
                        td data-level=(level(n, row)) data-right=(at == column) { (n) }
                    }
                } } }
            } }
        }
    }
}

/// A value on one line.
fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(whole) if whole.is_u64() || whole.is_i64() => whole.to_string(),
        Value::Number(float) => float.as_f64().map_or_else(String::new, number),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(object) => {
            let pairs =
                object.iter().map(|(key, value)| format!("{}: {}", spaced(key), plain(value)));
            pairs.collect::<Vec<_>>().join("; ")
        }
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Null => "–".to_owned(),
    }
}

/// The final metrics of several runs, a row each.
pub(super) fn of_several(runs: &[RunData]) -> Option<Markup> {
    let summaries: Vec<_> =
        runs.iter().filter_map(|run| Some((run, run.summary.as_ref()?))).collect();
    let mut metrics: Vec<&str> = summaries
        .iter()
        .flat_map(|(_, summary)| summary.metrics.keys().map(String::as_str))
        .collect();
    metrics.sort_unstable();
    metrics.dedup();
    let row = |run: &RunData, metric: &str| {
        run.summary
            .as_ref()
            .and_then(|summary| summary.metrics.get(metric))
            .map_or_else(|| "–".to_owned(), |value| number(*value))
    };
    (!summaries.is_empty()).then(|| html! {
        div.scroll { table {
            caption { "Final evaluation of the finished runs" }
            thead { tr { th scope="col" { "run" } @for metric in &metrics { th scope="col" { (metric_name(metric)) } } } }
            tbody { @for (run, _) in &summaries { tr {
                th scope="row" { (run.name) }
                @for metric in &metrics { td { (row(run, metric)) } }
            } } }
        } }
    })
}
