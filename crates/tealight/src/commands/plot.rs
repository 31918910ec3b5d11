//! `tealight plot RUN…`: charts of metrics.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use serde_json::Value;
use tealight_train::observer::jsonl::{self, Entry};
use tealight_train::run::RunDirectory;
use tealight_train::storage::files;
use tealight_train::task::report::Predictor;

use crate::args::inspect::Plot;
use crate::charts::axis::Spacing;
use crate::charts::dots::{Dot, DotChart, DotRow};
use crate::charts::files::save;
use crate::charts::lines::{LineChart, Series, XAxis};
use crate::charts::metrics::{display_name, mean, series};
use crate::charts::shapes::Drawing;
use crate::terminal::output::print_paths;

/// The metrics of a run, and its final report if it is finished.
struct Run {
    name: String,
    entries: Vec<Entry>,
    report: Option<Value>,
}

pub(crate) fn run(args: &Plot) -> Result<()> {
    let directories: Vec<RunDirectory> =
        args.runs.iter().map(|path| RunDirectory::open(path)).collect::<Result<_, _>>()?;
    let output = match (&args.output, directories.as_slice()) {
        (Some(output), _) => output.clone(),
        (None, [directory]) => {
            let plots = directory.path().join("plots");
            files::refuse_link(&plots)?;
            plots
        }
        (None, _) => bail!("several runs share their charts: `--output` must name a directory"),
    };
    if args.mean && directories.len() < 2 {
        bail!("`--mean` requires several runs, and there is one");
    }
    let mut runs: Vec<Run> = directories.iter().map(read).collect::<Result<_>>()?;
    let names: BTreeSet<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    if names.len() < runs.len() {
        // Runs of the same name are labelled with their paths.
        for (run, path) in runs.iter_mut().zip(&args.runs) {
            run.name = path.display().to_string();
        }
    }
    let spacing = if args.log { Spacing::Logarithmic } else { Spacing::Linear };
    let charts = if args.mean || runs.len() == 1 { by_metric(&runs) } else { by_run(&runs) };
    let drawings = charts.into_iter().map(|(name, title, series)| {
        (name, LineChart { title, x_axis: XAxis::Steps, spacing, series }.draw())
    });
    print_paths(&save(&output, drawings.chain(results(&runs)))?)
}

fn read(directory: &RunDirectory) -> Result<Run> {
    directory.manifest()?;
    let path = directory.metrics_path();
    let entries = jsonl::read(&path)?;
    if entries.is_empty() {
        bail!("`{}` has no metrics yet", path.display());
    }
    // Only a finished run has a report.
    let report = files::read(&directory.path().join("report.json")).ok();
    let report = report.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let name = std::fs::canonicalize(directory.path())
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_else(|| directory.name());
    Ok(Run { name, entries, report })
}

/// File name, title and lines of a chart.
type Chart = (String, String, Vec<Series>);

/// One chart per metric, with a line per split: that of the only run, or the mean of all runs.
fn by_metric(runs: &[Run]) -> Vec<Chart> {
    let mut charts: BTreeMap<&str, Vec<Series>> = BTreeMap::new();
    for (split, metric) in splits_and_metrics(runs) {
        let lines = runs.iter().map(|run| series(&run.entries, split, metric, split.to_owned()));
        let mut lines: Vec<Series> = lines.collect();
        let line = if lines.len() == 1 { lines.remove(0) } else { mean(&lines) };
        charts.entry(metric).or_default().push(line);
    }
    let title = |metric: &str| match runs {
        [run] => format!("{} · {}", display_name(metric), run.name),
        _ => format!("{}, mean ± standard deviation of {} runs", display_name(metric), runs.len()),
    };
    charts.into_iter().map(|(metric, lines)| (metric.to_owned(), title(metric), lines)).collect()
}

/// One chart per metric and split, with a line per run.
fn by_run(runs: &[Run]) -> Vec<Chart> {
    let chart = |(split, metric)| {
        let lines = runs.iter().map(|run| series(&run.entries, split, metric, run.name.clone()));
        let lines = lines.filter(|series| !series.points.is_empty());
        (format!("{metric}_{split}"), format!("{}, {split}", display_name(metric)), lines.collect())
    };
    splits_and_metrics(runs).into_iter().map(chart).collect()
}

/// All pairs of split and metric of any run.
fn splits_and_metrics(runs: &[Run]) -> BTreeSet<(&str, &str)> {
    let entries = runs.iter().flat_map(|run| &run.entries);
    entries
        .filter(|entry| !jsonl::BAD_STEP_SPLITS.contains(&entry.split.as_str()))
        .flat_map(|entry| entry.values.keys().map(|name| (entry.split.as_str(), name.as_str())))
        .collect()
}

/// Final accuracy and NLL with standard errors, beside a linear model and the Bayes limit.
fn results(runs: &[Run]) -> Vec<(String, Drawing)> {
    const PREDICTORS: [Predictor; 3] = [Predictor::Model, Predictor::Linear, Predictor::Bayes];
    let chart = |metric: &str| {
        let row = |run: &Run| {
            let report = run.report.as_ref()?;
            let value = |key: &str| report.get(key).and_then(Value::as_f64);
            let error = value(&format!("{metric}_standard_error")).unwrap_or(0.);
            let dot = |predictor: Predictor| {
                let error = if predictor == Predictor::Model { error } else { 0. };
                Some(Dot { value: value(&predictor.key(metric)?)?, error })
            };
            let dots = PREDICTORS.map(dot).to_vec();
            dots[0].map(|_| DotRow { name: run.name.clone(), dots })
        };
        let rows: Vec<DotRow> = runs.iter().filter_map(row).collect();
        let title = format!("{} of the finished runs", display_name(metric));
        let series = PREDICTORS.map(|predictor| predictor.name().to_owned()).to_vec();
        (!rows.is_empty())
            .then(|| (format!("result_{metric}"), DotChart { title, series, rows }.draw()))
    };
    ["accuracy", "nll"].into_iter().filter_map(chart).collect()
}
