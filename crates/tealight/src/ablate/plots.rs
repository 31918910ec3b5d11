//! Charts of an ablation: final metrics, and validation metrics over the steps.

use std::collections::BTreeSet;

use anyhow::Result;
use tealight_train::observer::jsonl::{self, Entry};

use super::plan::Plan;
use crate::charts::axis::Spacing;
use crate::charts::dots::{Dot, DotChart, DotRow};
use crate::charts::files::save;
use crate::charts::lines::{LineChart, Series, XAxis};
use crate::charts::metrics::{display_name, mean, series};
use crate::charts::shapes::Drawing;

/// The split of the metrics over the steps.
const SPLIT: &str = "validation";

/// Draws the finished runs into the output directory.
pub(super) fn draw(plan: &Plan<'_>) -> Result<()> {
    let finals = plan.metrics().into_iter();
    let finals = finals.map(|metric| (format!("result_{metric}"), result(plan, metric)));
    let curves = curves(plan)?;
    save(&plan.output, finals.chain(curves)).map(drop)
}

/// Number of seeds, for titles.
fn over(plan: &Plan<'_>) -> String {
    match plan.args.seeds.count() {
        1 => "one seed".to_owned(),
        n => format!("mean ± standard deviation of {n} seeds"),
    }
}

/// A final metric, with a dot per variant.
fn result(plan: &Plan<'_>, metric: &str) -> Drawing {
    let variants = plan.variants.iter().enumerate();
    let rows = variants.filter_map(|(index, variant)| {
        let result = plan.metric(index, metric)?;
        let dot = Dot { value: result.mean, error: result.deviation.unwrap_or(0.) };
        Some(DotRow { name: variant.label(&plan.axes), dots: vec![Some(dot)] })
    });
    let title = format!("{}, {}", display_name(metric), over(plan));
    DotChart { title, series: vec![metric.to_owned()], rows: rows.collect() }.draw()
}

/// One chart per validation metric, with a line per variant.
fn curves(plan: &Plan<'_>) -> Result<Vec<(String, Drawing)>> {
    let mut variants: Vec<(String, Vec<Vec<Entry>>)> = Vec::new();
    for (index, variant) in plan.variants.iter().enumerate() {
        let runs = plan.directories(index)?;
        let runs = runs.iter().map(|directory| jsonl::read(&directory.metrics_path()));
        variants.push((variant.label(&plan.axes), runs.collect::<Result<_, _>>()?));
    }
    let entries = variants.iter().flat_map(|(_, runs)| runs).flatten();
    let entries = entries.filter(|entry| entry.split == SPLIT);
    let metrics: BTreeSet<&str> =
        entries.flat_map(|entry| entry.values.keys().map(String::as_str)).collect();
    let chart = |metric: &str| {
        let series = variants.iter().map(|(label, runs)| curve(label, runs, metric));
        let series = series.filter(|series| !series.points.is_empty()).collect();
        let title = format!("{}, {SPLIT}, {}", display_name(metric), over(plan));
        (
            format!("{SPLIT}_{metric}"),
            LineChart { title, x_axis: XAxis::Steps, spacing: Spacing::Linear, series }.draw(),
        )
    };
    Ok(metrics.into_iter().map(chart).collect())
}

/// The mean of a variant's runs over the steps that all of them have.
fn curve(label: &str, runs: &[Vec<Entry>], metric: &str) -> Series {
    let line = |entries: &Vec<Entry>| series(entries, SPLIT, metric, label.to_owned());
    mean(&runs.iter().map(line).collect::<Vec<_>>())
}
