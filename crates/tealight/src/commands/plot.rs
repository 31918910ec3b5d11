//! `tealight plot RUN…`: how runs went, as pictures.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, bail};
use serde_json::Value;
use tealight_train::observer::jsonl::{self, Entry};
use tealight_train::run::RunDirectory;

use crate::args::Plot;
use crate::pictures::dots::{Dot, DotChart, DotRow};
use crate::pictures::files::save;
use crate::pictures::lines::{Across, LineChart, Series, Spread};
use crate::pictures::metrics::{mean, said, series};
use crate::pictures::shapes::Picture;
use crate::terminal::output::print_paths;

/// A run's name, its reports, and its final table where it has one.
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
        (None, [directory]) => directory.path().join("plots"),
        (None, _) => bail!("several runs are drawn together, so `--output` must say where"),
    };
    if args.mean && directories.len() < 2 {
        bail!("`--mean` is the mean of several runs, and there is one");
    }
    let mut runs: Vec<Run> = directories.iter().map(read).collect::<Result<_>>()?;
    let names: BTreeSet<&str> = runs.iter().map(|run| run.name.as_str()).collect();
    if names.len() < runs.len() {
        // Runs of one name in several directories go by their paths.
        for (run, path) in runs.iter_mut().zip(&args.runs) {
            run.name = path.display().to_string();
        }
    }
    let spread = if args.log { Spread::PowersOfTen } else { Spread::Even };
    let charts = match runs.as_slice() {
        [run] => alone(run),
        runs if args.mean => averaged(runs),
        runs => together(runs),
    };
    let pictures = charts.into_iter().map(|(name, title, series)| {
        (name, LineChart { title, across: Across::Steps, spread, series }.draw())
    });
    print_paths(&save(&output, pictures.chain(results(&runs)))?)
}

fn read(directory: &RunDirectory) -> Result<Run> {
    directory.manifest()?;
    let path = directory.metrics_path();
    let entries = jsonl::read(&path)?;
    if entries.is_empty() {
        bail!("`{}` holds no line yet: there is nothing to draw", path.display());
    }
    // A run that is not finished has no table.
    let report = std::fs::read(directory.path().join("report.json")).ok();
    let report = report.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let name = std::fs::canonicalize(directory.path())
        .ok()
        .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .unwrap_or_else(|| directory.name());
    Ok(Run { name, entries, report })
}

/// The name of a file, the title, and the lines.
type Chart = (String, String, Vec<Series>);

/// One picture for each number, with training and validation in it.
fn alone(run: &Run) -> Vec<Chart> {
    let mut charts: BTreeMap<&str, Vec<Series>> = BTreeMap::new();
    for (split, number) in numbers(std::slice::from_ref(run)) {
        let series = run.series(split, number, split.to_owned());
        charts.entry(number).or_default().push(series);
    }
    let title = |number: &str| format!("{} · {}", said(number), run.name);
    charts.into_iter().map(|(number, lines)| (number.to_owned(), title(number), lines)).collect()
}

/// One picture for each number and split, with a line for each run.
fn together(runs: &[Run]) -> Vec<Chart> {
    let chart = |(split, number)| {
        let lines = runs.iter().map(|run| run.series(split, number, run.name.clone()));
        let lines = lines.filter(|series| !series.points.is_empty());
        (format!("{number}_{split}"), format!("{}, {split}", said(number)), lines.collect())
    };
    numbers(runs).into_iter().map(chart).collect()
}

/// One picture for each number, with the means of all runs in it.
fn averaged(runs: &[Run]) -> Vec<Chart> {
    let mut charts: BTreeMap<&str, Vec<Series>> = BTreeMap::new();
    for (split, number) in numbers(runs) {
        let lines: Vec<_> =
            runs.iter().map(|run| run.series(split, number, split.to_owned())).collect();
        charts.entry(number).or_default().push(mean(&lines));
    }
    let title = |number: &str| {
        format!("{}, mean ± standard deviation of {} runs", said(number), runs.len())
    };
    charts.into_iter().map(|(number, lines)| (number.to_owned(), title(number), lines)).collect()
}

/// Every split and number that any run has; training comes first.
fn numbers(runs: &[Run]) -> BTreeSet<(&str, &str)> {
    let entries = runs.iter().flat_map(|run| &run.entries);
    entries
        .filter(|entry| !jsonl::NOTES.contains(&entry.split.as_str()))
        .flat_map(|entry| entry.values.keys().map(|name| (entry.split.as_str(), name.as_str())))
        .collect()
}

impl Run {
    fn series(&self, split: &str, number: &str, name: String) -> Series {
        series(&self.entries, split, number, name)
    }
}

/// The final accuracies and NLLs with their standard errors, beside what can be reached.
fn results(runs: &[Run]) -> Vec<(String, Picture)> {
    let chart = |number: &str| {
        let row = |run: &Run| {
            let report = run.report.as_ref()?;
            let value = |key: &str| report.get(key).and_then(Value::as_f64);
            let dot = |prefix: &str, error| {
                Some(Dot { value: value(&format!("{prefix}{number}"))?, error })
            };
            let error = value(&format!("{number}_standard_error")).unwrap_or(0.);
            let dots = vec![dot("", error), dot("linear_", 0.), dot("bayes_", 0.)];
            dots[0].map(|_| DotRow { name: run.name.clone(), dots })
        };
        let rows: Vec<DotRow> = runs.iter().filter_map(row).collect();
        let title = format!("{} of the finished runs", said(number));
        let series = ["transformer", "linear", "Bayes limit"].map(str::to_owned).to_vec();
        (!rows.is_empty())
            .then(|| (format!("result_{number}"), DotChart { title, series, rows }.draw()))
    };
    ["accuracy", "nll"].into_iter().filter_map(chart).collect()
}
