//! Charts over the steps: drawn as SVG here, and again by the script, which makes them interactive.

use std::collections::BTreeSet;

use maud::{Markup, PreEscaped, html};
use serde::Serialize;
use tealight_train::task::report::{Predictor, ReferenceScore};
use tealight_train::task::table::thousands;

use super::read::RunData;
use super::series::Series;
use super::text::{metric_name, number};
use crate::charts::axis::Spacing;
use crate::charts::lines::{self, LineChart, XAxis};
use crate::charts::shapes::Drawing;
use crate::charts::svg;

/// Stretches of all lines of a split in a static drawing, and the fewest of one line.
const N_STATIC: usize = 250;
const MIN_STATIC: usize = 25;
/// The most charts of a page: a file of others may name any number of metrics.
const MAX_CHARTS: usize = 60;
/// Metrics of training that have a place of their own after those of the task.
const OF_OPTIMIZATION: [&str; 2] = ["lr", "grad_norm"];
const OF_SPEED: [&str; 2] = ["examples_per_second", "tokens_per_second"];

/// A chart, as the script draws it.
#[derive(Debug, Serialize)]
pub(super) struct Chart {
    /// The metric, also the id of the figure.
    pub(super) metric: String,
    title: String,
    lines: Vec<Line>,
    limits: Vec<ReferenceScore>,
}

/// A line of a chart: a series of a run.
#[derive(Debug, Serialize)]
struct Line {
    run: usize,
    split: String,
    label: String,
}

/// All charts of the runs: the loss first, then the metrics of evaluations, then the others.
pub(super) fn charts(runs: &[RunData]) -> Vec<Chart> {
    let metrics: BTreeSet<&str> =
        runs.iter().flat_map(|run| &run.log.series).map(|series| &*series.metric).collect();
    let mut metrics: Vec<&str> = metrics.into_iter().collect();
    metrics.sort_by_key(|metric| (rank(runs, metric), *metric));
    metrics.into_iter().take(MAX_CHARTS).map(|metric| chart(runs, metric)).collect()
}

/// The place of a metric on the page.
fn rank(runs: &[RunData], metric: &str) -> usize {
    let is_evaluated = || {
        let mut series = runs.iter().flat_map(|run| &run.log.series);
        series.any(|series| series.metric == metric && series.split != "train")
    };
    match metric {
        "loss" => 0,
        _ if OF_OPTIMIZATION.contains(&metric) => 3,
        _ if OF_SPEED.contains(&metric) => 4,
        _ if is_evaluated() => 1,
        _ => 2,
    }
}

fn chart(runs: &[RunData], metric: &str) -> Chart {
    let mut lines = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        for series in run.log.series.iter().filter(|series| series.metric == metric) {
            let split = series.split.clone();
            let label =
                if runs.len() == 1 { split.clone() } else { format!("{} · {split}", run.name) };
            lines.push(Line { run: index, split, label });
        }
    }
    Chart {
        metric: metric.to_owned(),
        title: metric_name(metric),
        lines,
        limits: common_limits(runs, metric),
    }
}

/// The scores that a metric is compared with, those of equal values once.
fn common_limits(runs: &[RunData], metric: &str) -> Vec<ReferenceScore> {
    let mut common: Vec<ReferenceScore> = Vec::new();
    let with_run = |run| RunData::reference_scores(run).into_iter().map(move |score| (run, score));
    for (run, limit) in runs.iter().flat_map(with_run) {
        let is_known =
            |known: &ReferenceScore| (known.value - limit.value).abs() <= 1e-9 * limit.value.abs();
        if limit.metric != metric
            || common.iter().any(|known| is_known(known) && known.name.starts_with(&*limit.name))
        {
            continue;
        }
        // Baselines of several runs would fill the chart with lines.
        if runs.len() == 1 {
            common.push(limit);
        } else if limit.predictor == Predictor::Bayes {
            let name = format!("{}, {}", limit.name, run.name);
            common.push(ReferenceScore { name, ..limit });
        }
    }
    if let [only] = &mut common[..]
        && runs.len() > 1
    {
        Predictor::Bayes.name().clone_into(&mut only.name);
    }
    common
}

/// The figures of all charts.
pub(super) fn figures(runs: &[RunData], charts: &[Chart]) -> Markup {
    html! {
        div.charts { @for chart in charts { (figure(runs, chart)) } }
    }
}

fn figure(runs: &[RunData], chart: &Chart) -> Markup {
    let summary = format!("{} over the steps", chart.title);
    html! {
        figure.chart id=(format!("chart-{}", chart.metric)) data-chart=(chart.metric) {
            figcaption { h3 { (chart.title) } }
            div.static { (PreEscaped(svg::inline(&drawing(runs, chart), &summary))) }
            details.numbers {
                summary { "Numbers" }
                (ends(runs, chart))
            }
        }
    }
}

/// The series of a line.
fn series_of<'a>(runs: &'a [RunData], chart: &Chart, line: &Line) -> Option<&'a Series> {
    runs[line.run].series_of(&line.split, &chart.metric)
}

fn drawing(runs: &[RunData], chart: &Chart) -> Drawing {
    let mut series: Vec<lines::Series> = Vec::new();
    for line in &chart.lines {
        let Some(of) = series_of(runs, chart, line) else { continue };
        let thin = of.thinned((N_STATIC / runs.len()).max(MIN_STATIC));
        let points = thin.steps.iter().zip(&thin.values);
        let points = points.map(|(step, value)| (*step as f64, value.unwrap_or(f64::NAN)));
        series.push(lines::Series {
            name: line.label.clone(),
            points: points.collect(),
            deviations: Vec::new(),
        });
    }
    let steps = || series.iter().flat_map(|series| &series.points).map(|(step, _)| *step);
    let ends = [steps().fold(f64::INFINITY, f64::min), steps().fold(0., f64::max)];
    series.extend(chart.limits.iter().map(|limit| lines::Series {
        name: limit.name.clone(),
        points: ends.map(|step| (step, limit.value)).to_vec(),
        deviations: Vec::new(),
    }));
    let title = chart.title.clone();
    LineChart { title, x_axis: XAxis::Steps, spacing: Spacing::Linear, series }.draw()
}

/// First, last, smallest and largest value of each line, for readers of tables.
fn ends(runs: &[RunData], chart: &Chart) -> Markup {
    html! {
        div.scroll { table {
            thead { tr {
                @for heading in ["", "first", "last", "lowest", "highest", "points"] { th scope="col" { (heading) } }
            } }
            tbody {
                @for line in &chart.lines { @if let Some(series) = series_of(runs, chart, line) { tr {
                    th scope="row" { (line.label) }
                    @for point in extremes(series) { td { (at(point)) } }
                    td { (thousands(series.steps.len() as u64)) }
                } } }
                @for limit in &chart.limits { tr {
                    th scope="row" { (limit.name) } td colspan="5" { (number(limit.value)) }
                } }
            }
        } }
    }
}

/// The first, last, lowest and highest point.
fn extremes(series: &Series) -> [Option<(u64, f64)>; 4] {
    let by_value = |a: &(u64, f64), b: &(u64, f64)| a.1.total_cmp(&b.1);
    let mut finite = series.finite();
    [
        finite.next(),
        series.last(),
        series.finite().min_by(by_value),
        series.finite().max_by(by_value),
    ]
}

fn at(point: Option<(u64, f64)>) -> String {
    point.map_or_else(
        || "–".to_owned(),
        |(step, value)| format!("{} (step {})", number(value), thousands(step)),
    )
}
