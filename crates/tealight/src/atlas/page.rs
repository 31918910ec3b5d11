//! The page of an atlas: a table that can be sorted and filtered, charts, and what each kind is. It loads nothing.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest as _, Sha256};
use tealight_model::attention::AttentionConfig;
use tealight_train::monitor::early_stopping::Direction;

use super::Atlas;
use super::entries::{Entry, Scores, Trained, short};
use super::plan::{Column, Kind, Panel};
use crate::charts::axis::Spacing;
use crate::charts::base64::Base64;
use crate::charts::lines::{LineChart, Series, XAxis};
use crate::charts::svg::inline;
use crate::report::page::STYLE_OF_PAGE;
use crate::system::version::VERSION;

const STYLE: &str = include_str!("assets/atlas.css");
const SCRIPT: &str = include_str!("assets/atlas.js");
/// Lines of a chart.
const MAX_LINES: usize = 12;

/// The page.
pub(super) fn page(atlas: &Atlas) -> String {
    let style = format!("{STYLE_OF_PAGE}{STYLE}");
    let source = |text: &str| format!("'sha256-{}'", Base64(&Sha256::digest(text.as_bytes())));
    let policy = format!(
        "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'",
        source(&style),
        source(SCRIPT)
    );
    let document = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(policy);
                title { "Atlas of attention" }
                style { (PreEscaped(&style)) }
            }
            body {
                header {
                    p.brand { "Tealight " (VERSION) }
                    h1 { "Atlas of attention" }
                    p { "Which kind of attention recalls, counts, copies and learns in context: each on tasks whose limits are known." }
                }
                main {
                    section aria-labelledby="table" {
                        h2 #table { "Scores" }
                        div.controls { label { "Kinds with " input #filter type="search" placeholder="delta"; } }
                        div.scroll { (table(atlas)) }
                        p.hint { (atlas.legend()) " Dots are seeds, from 0 to the limit or to the greatest. A click on a heading sorts." }
                    }
                    (charts(atlas))
                    section aria-labelledby="kinds" {
                        h2 #kinds { "Kinds" }
                        @for (at, kind) in atlas.plan.kinds.iter().enumerate() { (section(atlas, at, kind)) }
                    }
                    section aria-labelledby="again" {
                        h2 #again { "Again" }
                        pre { "tealight atlas --jobs 2\ntealight atlas --merge atlas.json --check 5" }
                        p.hint { "Plan " code { (atlas.plan.hash) } }
                    }
                }
                script { (PreEscaped(SCRIPT)) }
            }
        }
    };
    document.into_string()
}

/// The number of a kind's part of the page.
fn anchor(kind: usize) -> String {
    format!("kind-{kind}")
}

/// Whether lower scores of a column are better.
fn falls(column: &Column) -> bool {
    Direction::of_metric(&column.metric) == Some(Direction::Min)
}

fn table(atlas: &Atlas) -> Markup {
    let columns = atlas.columns();
    let best: Vec<Option<f64>> =
        columns.iter().map(|&(panel, column)| best(atlas, panel, column)).collect();
    html! {
        table #atlas {
            thead { tr {
                th scope="col" data-first="ascending" { button type="button" { "kind" } }
                @for (panel, column) in &columns {
                    th scope="col" data-first=(if falls(column) { "ascending" } else { "descending" }) {
                        button type="button" { (atlas.plan.panels[*panel].title) br; (column.title) }
                    }
                }
            } }
            tbody {
                tr.limit {
                    th scope="row" { "limit" }
                    @for &(panel, column) in &columns { td { (atlas.limit(panel, column).map_or_else(|| "–".to_owned(), short)) } }
                }
                @for (at, kind) in atlas.plan.kinds.iter().enumerate() { tr {
                    th scope="row" data-value=(kind.name) { a href={ "#" (anchor(at)) } { (kind.name) } }
                    @for (&(panel, column), best) in columns.iter().zip(&best) { (cell(atlas, [panel, at], column, *best)) }
                } }
            }
        }
    }
}

/// The best median of a column.
fn best(atlas: &Atlas, panel: usize, column: &Column) -> Option<f64> {
    let medians = (0..atlas.plan.kinds.len()).filter_map(|kind| match atlas.entry(panel, kind) {
        Entry::Trained(trained) => Some(trained.scores(column)?.median.value),
        _ => None,
    });
    if falls(column) { medians.reduce(f64::min) } else { medians.reduce(f64::max) }
}

fn cell(atlas: &Atlas, [panel, kind]: [usize; 2], column: &Column, best: Option<f64>) -> Markup {
    let missing = |text: &str, why: &str| html! { td title=(why) { (text) } };
    match atlas.entry(panel, kind) {
        Entry::Absent => missing("", ""),
        Entry::Refused(message) => missing("–", message),
        Entry::Failed(message) => missing("failed", message),
        Entry::Waiting => missing("…", "runs are missing"),
        Entry::Trained(trained) => match trained.scores(column) {
            None => missing("failed", ""),
            Some(scores) => {
                let marks = atlas.marks(panel, kind, column, &trained);
                let class = if best == Some(scores.median.value) {
                    "best"
                } else if marks.contains('b') {
                    "barred"
                } else {
                    ""
                };
                html! {
                    td class=(class) data-value=(scores.median.value) {
                        @match trained.seeds.first() {
                            Some((name, _)) => a href=(name) { (short(scores.median.value)) },
                            None => (short(scores.median.value)),
                        }
                        span.mark { (marks) }
                        (dots(&scores))
                    }
                }
            }
        },
    }
}

/// The seeds between 0 and the limit, or the greatest.
fn dots(scores: &Scores) -> Markup {
    const WIDTH: f64 = 80.;
    let most =
        scores.all.iter().copied().fold(scores.median.limit.unwrap_or(0.), f64::max).max(1e-9);
    let place = |value: f64| format!("{:.1}", 5. + (WIDTH - 10.) * (value / most).clamp(0., 1.));
    html! {
        svg.seeds viewBox="0 0 80 10" aria-hidden="true" {
            line x1="5" x2="75" y1="5" y2="5" {}
            @for &value in &scores.all { circle cx=(place(value)) cy="5" r="3" {} }
        }
    }
}

/// Recall over the size of the state, and the accuracy over the position of groups.
fn charts(atlas: &Atlas) -> Markup {
    let mut drawings = Vec::new();
    for (at, panel) in atlas.plan.panels.iter().enumerate() {
        let joined =
            atlas.plan.panels.iter().any(|other| other.joins.as_deref() == Some(&panel.name));
        if joined {
            drawings.extend(over_state(atlas, panel));
        }
        drawings.extend(over_position(atlas, at, panel));
    }
    if drawings.is_empty() {
        return html! {};
    }
    html! {
        section aria-labelledby="charts" {
            h2 #charts { "Charts" }
            div.charts { @for (title, svg) in &drawings { figure { h3 { (title) } (PreEscaped(svg)) } } }
        }
    }
}

fn drawn(title: String, x_axis: XAxis, series: Vec<Series>) -> Option<(String, String)> {
    if series.is_empty() {
        return None;
    }
    let chart = LineChart { title: String::new(), x_axis, spacing: Spacing::Linear, series }.draw();
    let svg = inline(&chart, &title);
    Some((title, svg))
}

/// The first column of a panel and of those that join it, over the bytes of the state.
fn over_state(atlas: &Atlas, panel: &Panel) -> Option<(String, String)> {
    let column = panel.columns.first()?;
    let panels = atlas.plan.panels.iter().enumerate();
    let panels: Vec<usize> = panels
        .filter(|(_, other)| {
            other.name == panel.name || other.joins.as_deref() == Some(&panel.name)
        })
        .map(|(at, _)| at)
        .collect();
    let of_kind = |(at, kind): (usize, &Kind)| {
        let mut points: Vec<(f64, f64)> = panels
            .iter()
            .filter_map(|&panel| match atlas.entry(panel, at) {
                Entry::Trained(trained) => {
                    let (_, record) = trained.seeds.first()?;
                    Some((
                        *record.state_bytes.first()? as f64,
                        trained.scores(column)?.median.value,
                    ))
                }
                _ => None,
            })
            .collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Series { name: kind.name.clone(), points, ..Series::default() }
    };
    let mut series: Vec<Series> = atlas.plan.kinds.iter().enumerate().map(of_kind).collect();
    series.retain(|series| !series.points.is_empty());
    let best = |series: &Series| series.points.iter().map(|point| point.1).fold(0., f64::max);
    series.sort_by(|a, b| best(b).total_cmp(&best(a)));
    series.truncate(2 * MAX_LINES);
    let title = format!(
        "{}, {}, over the state after 32 tokens, the best {}",
        panel.title,
        column.title,
        2 * MAX_LINES
    );
    drawn(title, XAxis::StateBytes, series)
}

/// The accuracy over ranges of positions on the last test of a panel, of the kinds with the best last columns.
fn over_position(atlas: &Atlas, at: usize, panel: &Panel) -> Option<(String, String)> {
    let column = panel.columns.last()?;
    let mut lines: Vec<(f64, Series)> = Vec::new();
    for (kind, row) in atlas.plan.kinds.iter().enumerate() {
        let Entry::Trained(trained) = atlas.entry(at, kind) else { continue };
        let (Some(scores), Some((_, record))) = (trained.scores(column), trained.seeds.first())
        else {
            continue;
        };
        let point =
            |bin: &serde_json::Value| Some((bin["to"].as_f64()?, bin["accuracy"].as_f64()?));
        let points: Vec<_> =
            record.bins.as_array().into_iter().flatten().filter_map(point).collect();
        if points.len() > 1 {
            lines.push((
                scores.median.value,
                Series { name: row.name.clone(), points, ..Series::default() },
            ));
        }
    }
    lines.sort_by(|a, b| b.0.total_cmp(&a.0));
    if falls(column) {
        lines.reverse();
    }
    let series = lines.into_iter().take(MAX_LINES).map(|(_, series)| series).collect();
    drawn(
        format!("{}: accuracy up to a position or distance, the best {MAX_LINES}", panel.title),
        XAxis::Positions,
        series,
    )
}

/// What a kind is, its settings, its rates, and the theorems about it.
fn section(atlas: &Atlas, at: usize, kind: &Kind) -> Markup {
    let name = kind.attention.get("kind").or(Some(&kind.attention)).and_then(toml::Value::as_str);
    let summary = AttentionConfig::KINDS
        .iter()
        .find(|one| Some(one.name) == name)
        .map_or("", |one| one.summary);
    let trained = |panel| match atlas.entry(panel, at) {
        Entry::Trained(trained) => Some(trained),
        _ => None,
    };
    html! {
        details.kind id=(anchor(at)) {
            summary { strong { (kind.name) } " " (summary) }
            pre { @for setting in kind.settings() { (setting) "\n" } }
            div.scroll { table {
                thead { tr {
                    @for heading in ["panel", "scores", "rate", "best − worst rate", "90 % after", "parameters"] {
                        th scope="col" { (heading) }
                    }
                } }
                tbody { @for (panel, of_panel) in atlas.plan.panels.iter().enumerate() {
                    @if let Some(trained) = trained(panel) { (row(of_panel, &trained)) }
                } }
            } }
            @for (panel, theorem) in &kind.barred { p.hint { "Barred from " (panel) ": " (theorem) } }
        }
    }
}

fn row(panel: &Panel, trained: &Trained<'_>) -> Markup {
    let scores: Vec<(&Column, Scores)> =
        panel.columns.iter().filter_map(|column| Some((column, trained.scores(column)?))).collect();
    let steps = trained.mean(|record| Some(record.steps_to_90? as f64));
    html! {
        tr {
            th scope="row" { (panel.title) }
            td { @for (column, scores) in &scores { (column.title) ": " (scores.text()) br; } }
            td { (trained.lr.map_or_else(|| "–".to_owned(), |lr| lr.to_string())) }
            td { @for (_, scores) in &scores { (short(scores.sensitivity)) br; } }
            td { (steps.map_or_else(|| "–".to_owned(), |steps| format!("{steps:.0} steps"))) }
            td { (trained.parameters) }
        }
    }
}
