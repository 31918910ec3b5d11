//! The table as pictures: the final metrics, and how validation went on the way.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Result;
use tealight_train::observer::jsonl::{self, Entry};

use super::results::Results;
use crate::args::ablate::Ablate;
use crate::pictures::dots::{Dot, DotChart, DotRow};
use crate::pictures::files::save;
use crate::pictures::lines::{Across, LineChart, Series, Spread};
use crate::pictures::metrics::{mean, said, series};
use crate::pictures::shapes::Picture;

/// The split that is drawn on the way.
const SPLIT: &str = "validation";

/// Draws what has finished, each picture as SVG and PNG, and returns the files.
pub(super) fn draw(results: &Results<'_>, args: &Ablate) -> Result<Vec<PathBuf>> {
    let finals = results.metrics().into_iter();
    let finals = finals.map(|metric| (format!("result_{metric}"), result(results, metric, args)));
    let curves = curves(results, args)?;
    save(&results.plan.output, finals.chain(curves))
}

fn over(args: &Ablate) -> String {
    match args.seeds.count() {
        1 => "one seed".to_owned(),
        n => format!("mean ± standard deviation of {n} seeds"),
    }
}

/// A metric at the end: a dot for each variant.
fn result(results: &Results<'_>, metric: &str, args: &Ablate) -> Picture {
    let variants = results.plan.variants.iter().enumerate();
    let rows = variants.filter_map(|(index, variant)| {
        let spread = results.spread(index, metric)?;
        let dot = Dot { value: spread.mean, error: spread.deviation.unwrap_or(0.) };
        Some(DotRow { name: variant.label(&results.plan.axes), dots: vec![Some(dot)] })
    });
    let title = format!("{}, {}", said(metric), over(args));
    DotChart { title, series: vec![metric.to_owned()], rows: rows.collect() }.draw()
}

/// Every metric of the validation split: a line for each variant.
fn curves(results: &Results<'_>, args: &Ablate) -> Result<Vec<(String, Picture)>> {
    let mut variants: Vec<(String, Vec<Vec<Entry>>)> = Vec::new();
    for (index, variant) in results.plan.variants.iter().enumerate() {
        let runs = results.directories(index)?;
        let runs = runs.iter().map(|directory| jsonl::read(&directory.metrics_path()));
        variants.push((variant.label(&results.plan.axes), runs.collect::<Result<_, _>>()?));
    }
    let entries = variants.iter().flat_map(|(_, runs)| runs).flatten();
    let entries = entries.filter(|entry| entry.split == SPLIT);
    let metrics: BTreeSet<&str> =
        entries.flat_map(|entry| entry.values.keys().map(String::as_str)).collect();
    let chart = |metric: &str| {
        let series = variants.iter().map(|(label, runs)| curve(label, runs, metric));
        let series = series.filter(|series| !series.points.is_empty()).collect();
        let title = format!("{}, {SPLIT}, {}", said(metric), over(args));
        (
            format!("{SPLIT}_{metric}"),
            LineChart { title, across: Across::Steps, spread: Spread::Even, series }.draw(),
        )
    };
    Ok(metrics.into_iter().map(chart).collect())
}

/// The mean of a variant's runs, at the steps that all of them have.
fn curve(label: &str, runs: &[Vec<Entry>], metric: &str) -> Series {
    let line = |entries: &Vec<Entry>| series(entries, SPLIT, metric, label.to_owned());
    mean(&runs.iter().map(line).collect::<Vec<_>>())
}
