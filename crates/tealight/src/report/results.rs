//! The final evaluation of a run: the numbers of `report.json` beside those of the baselines.

use std::collections::BTreeSet;

use maud::{Markup, PreEscaped, html};
use serde_json::{Map, Value};
use tealight_train::task::report::Predictor;
use tealight_train::task::table::thousands;

use super::groups::Groups;
use super::overview::{progress, standing};
use super::read::RunData;
use super::text::{key, metric_name, number};
use super::values::{facts, is_fact, item};
use super::{mistakes, samples};
use crate::charts::{reliability, svg};

/// The section of a run: how far it is, and its scores.
pub(super) fn of_one(run: &RunData) -> Markup {
    let metrics = metrics(run);
    html! {
        (progress(run))
        @if run.report.is_some() {
            (against_baselines(run, &metrics))
            @let values = rest(run, &metrics).filter(|(_, value)| is_fact(value));
            (facts(values))
            (after_training(run))
        } @else {
            (standing(run))
        }
        @if let Some(summary) = &run.summary {
            @for note in &summary.notes { p.warning { (note) } }
        }
    }
}

/// The section with what the other ones do not show of the report; `None` if that is nothing.
pub(super) fn in_detail(run: &RunData) -> Option<Markup> {
    let metrics = metrics(run);
    let others: Vec<_> = rest(run, &metrics).filter(|(_, value)| !is_fact(value)).collect();
    (!others.is_empty()).then(|| {
        html! {
            @for (key, value) in others {
                @if key == "calibration" { (diagram(value)) }
                @if let ("test", Some(test)) = (key.as_str(), value.as_object()) {
                    (on_test_data(test))
                } @else {
                    (item(key, value))
                }
            }
        }
    })
}

/// The report on test data: its numbers, then its mistakes as those of the validation split are shown.
fn on_test_data(test: &Map<String, Value>) -> Markup {
    let name = test.get("data").and_then(Value::as_str).unwrap_or_default();
    let is_shown = |key: &str| mistakes::IN_REPORT.contains(&key) || key == "data";
    let others = || test.iter().filter(|(key, value)| !is_shown(key) && !value.is_null());
    html! {
        h3 { "Test data, " (name) }
        (facts(others().filter(|(_, value)| is_fact(value))))
        @for (key, value) in others().filter(|(_, value)| !is_fact(value)) { (item(key, value)) }
        @if let Some(mistakes) = mistakes::of_report(test, &[]) { (mistakes) }
    }
}

/// The reliability diagram of a calibration; nothing if it has no bins.
fn diagram(calibration: &Value) -> Markup {
    let bins = |when: &str| -> Vec<(f64, f64)> {
        let bins = calibration[when]["bins"].as_array().into_iter().flatten();
        let of = |bin: &Value| Some((bin["confidence"].as_f64()?, bin["accuracy"].as_f64()?));
        bins.filter_map(of)
            .filter(|(x, y)| [x, y].iter().all(|v| (0. ..=1.).contains(*v)))
            .collect()
    };
    let both = [("as trained", bins("before")), ("calibrated", bins("after"))];
    let label = "accuracy by confidence, as trained and calibrated";
    html! {
        @if both.iter().any(|(_, bins)| !bins.is_empty()) {
            figure { (PreEscaped(svg::inline(&reliability::draw(&both), label))) }
        }
    }
}

/// The names of the scores of the model.
fn metrics(run: &RunData) -> Vec<&str> {
    run.summary.iter().flat_map(|summary| summary.metrics.keys().map(String::as_str)).collect()
}

/// The values of the report that neither the first table nor another section shows.
fn rest<'a>(
    run: &'a RunData,
    metrics: &'a [&str],
) -> impl Iterator<Item = (&'a String, &'a Value)> {
    let elsewhere =
        |key: &str| mistakes::IN_REPORT.contains(&key) || samples::IN_REPORT.contains(&key);
    let values = run.report.as_ref().and_then(Value::as_object).into_iter().flatten();
    values.filter(move |(key, value)| !elsewhere(key) && !is_in_first_table(key, value, metrics))
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
    let test = run.report.as_ref().and_then(|report| report.get("test"));
    let of_test = |metric: &str| test?.get(metric)?.as_f64();
    let name_of_test = test.and_then(|test| test["data"].as_str());
    let row = |class: &str, name: &str, of: &dyn Fn(&str) -> Option<f64>| {
        html! { tr.(class) {
            th scope="row" { (name) }
            @for metric in metrics { td { (of(metric).map_or_else(|| "–".to_owned(), number)) } }
        } }
    };
    let other = |name: &str| row("baseline", name, &|metric| of_other(name, metric));
    html! {
        p.detail { "Final evaluation" (of_checkpoint(run)) }
        div.scroll { table {
            thead { tr { th {} @for metric in metrics { th scope="col" { (metric_name(metric)) } } } }
            tbody {
                @for (_, name) in &baselines { (other(name)) }
                (row("own", Predictor::Model.name(), &of_run))
                @if let Some(name) = name_of_test {
                    (row("own", &format!("{} on test data, {name}", Predictor::Model.name()), &of_test))
                }
                @for (_, name) in &limits { (other(name)) }
            }
        } }
    }
}

/// What is fitted to the held-out texts after training, and changes what `classify` answers.
fn after_training(run: &RunData) -> Markup {
    let of = |key: &str| run.report.as_ref().and_then(|report| report.get(key));
    let calibration = of("calibration").and_then(|one| Some((one["temperature"].as_f64()?, one)));
    let measure = |one: &Value, when: &str, name: &str| one[when][name].as_f64().map(number);
    html! {
        @if let Some((temperature, one)) = calibration {
            p.detail {
                "Probabilities are calibrated: temperature " (number(temperature))
                @for (name, shown) in [("nll", "NLL"), ("ece", "ECE"), ("brier", "Brier")] {
                    @if let (Some(before), Some(after)) = (measure(one, "before", name), measure(one, "after", name)) {
                        ", " (shown) " " (before) " → " (after)
                    }
                }
                "."
            }
        }
        @if of("thresholds").is_some() {
            p.detail {
                "The scores above are by a probability of one half; " code { "classify" }
                " follows the thresholds in the results in detail, with the scores there."
            }
        }
    }
}

/// Which checkpoint is in use: `, with the checkpoint of step 400 (best)`
fn of_checkpoint(run: &RunData) -> String {
    let in_use = run.checkpoints.iter().find(|checkpoint| checkpoint.is_in_use);
    in_use.map_or_else(String::new, |one| {
        format!(", with the checkpoint of step {} ({})", thousands(one.step), one.marks.join(", "))
    })
}

/// The final metrics of several runs, a row each.
pub(super) fn of_several(runs: &[RunData], groups: &Groups) -> Option<Markup> {
    let summaries = || {
        let runs = runs.iter().enumerate();
        runs.filter_map(|(index, run)| Some((index, run, &run.summary.as_ref()?.metrics)))
    };
    let metrics: BTreeSet<&String> = summaries().flat_map(|(.., metrics)| metrics.keys()).collect();
    let cell = |value: Option<&f64>| value.map_or_else(|| "–".to_owned(), |value| number(*value));
    summaries().next().is_some().then(|| html! {
        div.scroll { table {
            caption { "Final evaluation of the finished runs" }
            thead { tr { th scope="col" { "run" } @for metric in &metrics { th scope="col" { (metric_name(metric)) } } } }
            tbody { @for (index, run, of_run) in summaries() { tr {
                th scope="row" { @if let Some(group) = groups.of(index) { (key(group)) " " } (run.name) }
                @for metric in &metrics { td { (cell(of_run.get(*metric))) } }
            } } }
        } }
    })
}
