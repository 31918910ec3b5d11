//! Charts over the steps: drawn as SVG here, and again by the script, which makes them interactive.

use std::collections::BTreeSet;

use maud::{Markup, PreEscaped, html};
use serde::Serialize;
use tealight_train::task::report::{Predictor, ReferenceScore};
use tealight_train::task::table::thousands;

use super::groups::Groups;
use super::read::RunData;
use super::series::Series;
use super::text::{metric_name, number};
use crate::charts::axis::Spacing;
use crate::charts::lines::{self, LineChart, XAxis};
use crate::charts::metrics::mean;
use crate::charts::shapes::Drawing;
use crate::charts::svg;

/// Stretches of all lines of a split in a static drawing, and the fewest of one line.
const N_STATIC: usize = 250;
const MIN_STATIC: usize = 25;
/// The most charts of a page: a file of others may name any number of metrics.
const MAX_CHARTS: usize = 60;
/// The split of evaluations.
const EVALUATED: &str = "validation";
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
    /// The group of its run, which decides the colour; `None` on the page of one run.
    group: Option<usize>,
    split: String,
    label: String,
}

/// All charts of the runs: the loss first, then the metrics of evaluations, then the others.
pub(super) fn charts(runs: &[RunData], groups: &Groups) -> Vec<Chart> {
    let metrics: BTreeSet<&str> =
        runs.iter().flat_map(|run| &run.log.series).map(|series| &*series.metric).collect();
    let mut metrics: Vec<&str> = metrics.into_iter().collect();
    metrics.sort_by_key(|metric| (rank(runs, metric), *metric));
    metrics.into_iter().take(MAX_CHARTS).map(|metric| chart(runs, groups, metric)).collect()
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

fn chart(runs: &[RunData], groups: &Groups, metric: &str) -> Chart {
    let mut lines = Vec::new();
    for (index, run) in runs.iter().enumerate() {
        for series in run.log.series.iter().filter(|series| series.metric == metric) {
            let split = series.split.clone();
            let label =
                if runs.len() == 1 { split.clone() } else { format!("{} · {split}", run.name) };
            lines.push(Line { run: index, group: groups.of(index), split, label });
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
pub(super) fn figures(runs: &[RunData], groups: &Groups, charts: &[Chart]) -> Markup {
    html! {
        (groups.legend())
        div.charts { @for chart in charts { (figure(runs, groups, chart)) } }
    }
}

fn figure(runs: &[RunData], groups: &Groups, chart: &Chart) -> Markup {
    let summary = format!("{} over the steps", chart.title);
    html! {
        figure.chart id=(format!("chart-{}", chart.metric)) data-chart=(chart.metric) {
            figcaption { h3 { (chart.title) } }
            div.static { (PreEscaped(svg::inline(&drawing(runs, groups, chart), &summary))) }
            details.numbers {
                summary { "Numbers" }
                (ends(runs, chart))
            }
        }
    }
}

/// The means of each metric of evaluations over the runs of a group, with their deviations.
pub(super) fn means(runs: &[RunData], groups: &Groups, charts: &[Chart]) -> Markup {
    // One run alone has no spread.
    let is_evaluated = |chart: &&Chart| {
        chart.lines.iter().any(|line| line.group.is_some() && line.split == EVALUATED)
    };
    html! {
        div.plots { @for chart in charts.iter().filter(is_evaluated) {
            @let title = format!("{}, {EVALUATED}, mean ± standard deviation", chart.title);
            figure { (PreEscaped(svg::inline(&mean_lines(runs, groups, chart, &title), &title))) }
        } }
    }
}

fn mean_lines(runs: &[RunData], groups: &Groups, chart: &Chart, title: &str) -> Drawing {
    let of_group = |group: usize| {
        let lines =
            chart.lines.iter().filter(|line| line.group == Some(group) && line.split == EVALUATED);
        let series = lines.filter_map(|line| series_of(runs, chart, line)).map(points);
        let lines: Vec<_> =
            series.map(|points| lines::Series { points, ..lines::Series::default() }).collect();
        lines::Series { style: Some(group), ..mean(&lines) }
    };
    let series = (0..groups.names.len()).map(of_group).collect();
    let title = title.to_owned();
    LineChart { title, x_axis: XAxis::Steps, spacing: Spacing::Linear, series }.draw()
}

/// Steps and values of a series; those that were not finite leave gaps.
fn points(series: &Series) -> Vec<(f64, f64)> {
    let points = series.steps.iter().zip(&series.values);
    points.map(|(step, value)| (*step as f64, value.unwrap_or(f64::NAN))).collect()
}

/// The series of a line.
fn series_of<'a>(runs: &'a [RunData], chart: &Chart, line: &Line) -> Option<&'a Series> {
    runs[line.run].series_of(&line.split, &chart.metric)
}

/// The lines of groups have their colours, and their names in the legend of the page. Of these, lines of training are
/// left out where there are evaluations.
fn drawing(runs: &[RunData], groups: &Groups, chart: &Chart) -> Drawing {
    let mut series: Vec<lines::Series> = Vec::new();
    let is_evaluated = chart.lines.iter().any(|line| line.split != "train");
    for (index, line) in chart.lines.iter().enumerate() {
        let Some(of) = series_of(runs, chart, line) else { continue };
        if line.group.is_some() && is_evaluated && line.split == "train" {
            continue;
        }
        let thin = of.thinned((N_STATIC / runs.len()).max(MIN_STATIC));
        series.push(lines::Series {
            name: if line.group.is_some() { String::new() } else { line.label.clone() },
            points: points(&thin),
            style: Some(line.group.unwrap_or(index)),
            ..lines::Series::default()
        });
    }
    let steps = || series.iter().flat_map(|series| &series.points).map(|(step, _)| *step);
    let ends = [steps().fold(f64::INFINITY, f64::min), steps().fold(0., f64::max)];
    let n_styles = if groups.names.is_empty() { chart.lines.len() } else { groups.names.len() };
    series.extend(chart.limits.iter().zip(n_styles..).map(|(limit, style)| lines::Series {
        name: limit.name.clone(),
        points: ends.map(|step| (step, limit.value)).to_vec(),
        style: Some(style),
        ..lines::Series::default()
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
