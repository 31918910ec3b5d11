//! How the runs are doing, and where their numbers stand against the baselines.

use std::collections::{BTreeMap, BTreeSet};

use maud::{Markup, html};
use tealight_train::task::report::ReferenceScore;
use tealight_train::task::table::thousands;

use super::groups::Groups;
use super::read::RunData;
use super::read::state::State;
use super::status::{duration, steps, time_left};
use super::text::{key, lower_is_better, metric_name, number};

/// The numbers of a page that change while a run goes on, by the name in `data-fact`.
pub(super) fn facts(run: &RunData) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::from([
        ("status".to_owned(), run.state.word().to_owned()),
        ("steps".to_owned(), steps(run)),
        ("time".to_owned(), training_time(run)),
    ]);
    facts.extend(time_left(run).map(|left| ("left".to_owned(), left)));
    for (split, metric) in shown_metrics(run) {
        facts.insert(format!("{split}/{metric}/last"), at_step(last(run, split, metric)));
        facts.insert(format!("{split}/{metric}/best"), at_step(best(run, split, metric)));
    }
    facts
}

fn training_time(run: &RunData) -> String {
    run.log.clock.seconds.last().map_or_else(|| "–".to_owned(), |seconds| duration(*seconds))
}

/// An element whose text a live page replaces.
fn fact(index: usize, facts: &BTreeMap<String, String>, name: &str) -> Markup {
    html! { span data-fact=(format!("{index}/{name}")) { (facts.get(name).map_or("–", String::as_str)) } }
}

/// Splits and metrics in the table: those of evaluations, and the training loss.
fn shown_metrics(run: &RunData) -> Vec<(&str, &str)> {
    let evaluated = run.log.series.iter().filter(|series| series.split != "train");
    let mut shown: Vec<_> = evaluated.map(|series| (&*series.split, &*series.metric)).collect();
    shown.sort_by_key(|(split, metric)| (*split, *metric != "loss", *metric));
    shown.extend(run.series_of("train", "loss").map(|_| ("train", "loss")));
    shown
}

fn last(run: &RunData, split: &str, metric: &str) -> Option<(u64, f64)> {
    run.series_of(split, metric)?.last()
}

fn best(run: &RunData, split: &str, metric: &str) -> Option<(u64, f64)> {
    let sign = if lower_is_better(metric) { 1. } else { -1. };
    run.series_of(split, metric)?.finite().min_by(|a, b| (sign * a.1).total_cmp(&(sign * b.1)))
}

/// `0.4312 (step 400)`
fn at_step(value: Option<(u64, f64)>) -> String {
    let Some((step, value)) = value else { return "–".to_owned() };
    format!("{} (step {})", number(value), thousands(step))
}

/// How far one run is: the first line of its page.
pub(super) fn progress(run: &RunData) -> Markup {
    let facts = facts(run);
    html! {
        (state(0, run, &facts))
        p.detail {
            "step " (fact(0, &facts, "steps"))
            @if facts.contains_key("left") { ", " (fact(0, &facts, "left")) " left" }
        }
        (bad_steps(run))
    }
}

/// The section of one run.
pub(super) fn of_one(run: &RunData) -> Markup {
    let facts = facts(run);
    html! {
        dl.facts {
            div { dt { "task" } dd { (run.config.task.kind()) } }
            div { dt { "attention" } dd { (run.config.model.attention_kinds()) } }
            div { dt { "parameters" } dd { (thousands(run.manifest.n_parameters)) } }
            div { dt { "training time" } dd { (fact(0, &facts, "time")) } }
            div { dt { "device" } dd { (run.manifest.device) } }
        }
        @if run.report.is_some() { (standing(run)) }
    }
}

fn state(index: usize, run: &RunData, facts: &BTreeMap<String, String>) -> Markup {
    html! {
        p.status {
            span.state data-state=(run.state.word()) data-fact=(format!("{index}/status")) {
                (facts["status"])
            }
            @if let Some(detail) = run.state.detail() {
                " "
                span.(if matches!(run.state, State::Failed(_)) { "error" } else { "detail" }) { (detail) }
            }
        }
    }
}

/// Last and best values of each metric beside the baselines.
pub(super) fn standing(run: &RunData) -> Markup {
    let (facts, metrics) = (&facts(run), shown_metrics(run));
    if metrics.is_empty() {
        return html! { p { "Nothing has been logged yet." } };
    }
    let scores = run.reference_scores();
    let names: BTreeSet<&str> = scores.iter().map(|score| &*score.name).collect();
    let of = |split: &str, metric: &str, name: &str| {
        let fits = |score: &&ReferenceScore| {
            split != "train" && score.metric == metric && score.name == name
        };
        scores.iter().find(fits).map_or_else(|| "–".to_owned(), |score| number(score.value))
    };
    html! {
        div.scroll { table {
            caption { "Where the numbers stand" }
            thead { tr {
                th scope="col" { "metric" } th scope="col" { "last" } th scope="col" { "best" }
                @for name in &names { th scope="col" { (name) } }
            } }
            tbody { @for (split, metric) in &metrics { tr {
                th scope="row" { (split) ", " (metric_name(metric)) }
                td { (fact(0, facts, &format!("{split}/{metric}/last"))) }
                td { (fact(0, facts, &format!("{split}/{metric}/best"))) }
                @for name in &names { td { (of(split, metric, name)) } }
            } } }
        } }
    }
}

/// Skipped steps and roll-backs, if any.
fn bad_steps(run: &RunData) -> Markup {
    let count = |split: &str| run.log.marks.iter().filter(|mark| mark.kind == split).count();
    let (skipped, rolled_back) = (count("skipped"), count("rolled_back"));
    html! {
        @if skipped + rolled_back > 0 {
            p.warning {
                "Bad steps: " (skipped) " skipped, " (rolled_back) " rolled back. The charts mark them."
            }
        }
    }
}

/// The section of several runs: a row each.
pub(super) fn of_several(runs: &[RunData], groups: &Groups) -> Markup {
    let metrics = common_metrics(runs);
    let is_running = runs.iter().any(|run| run.state == State::Running);
    html! {
        div.scroll { table {
            caption { "The runs; best values of the validation split" }
            thead { tr {
                th scope="col" { "run" } th scope="col" { "state" } th scope="col" { "steps" }
                @if is_running { th scope="col" { "time left" } }
                th scope="col" { "training time" } th scope="col" { "parameters" }
                @for (split, metric) in &metrics { th scope="col" { (split) ", " (metric_name(metric)) } }
            } }
            tbody { @for (index, run) in runs.iter().enumerate() { @let facts = facts(run); tr {
                th scope="row" { @if let Some(group) = groups.of(index) { (key(group)) " " } (run.name) }
                td { (state(index, run, &facts)) }
                td { (fact(index, &facts, "steps")) }
                @if is_running { td { (fact(index, &facts, "left")) } }
                td { (fact(index, &facts, "time")) }
                td { (thousands(run.manifest.n_parameters)) }
                @for (split, metric) in &metrics {
                    td { (fact(index, &facts, &format!("{split}/{metric}/best"))) }
                }
            } } }
        } }
    }
}

/// The metrics of evaluations of any run.
fn common_metrics(runs: &[RunData]) -> Vec<(&str, &str)> {
    let mut metrics: Vec<(&str, &str)> = Vec::new();
    for metric in runs.iter().flat_map(shown_metrics).filter(|(split, _)| *split != "train") {
        if !metrics.contains(&metric) {
            metrics.push(metric);
        }
    }
    metrics
}
