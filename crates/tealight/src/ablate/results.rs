//! The results of the runs, as mean and standard deviation over the seeds: tables, CSV, JSON.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::{Map, Value, json};
use tealight_train::run::RunDirectory;
use tealight_train::task::table::{Table, thousands};

use super::plan::{Plan, Run};
use super::variants::{Axis, Variant, unquoted};
use crate::charts::metrics::MeanDeviation;
use crate::runs::summary::Summary;
use crate::system::subprocess::first_line;
use crate::terminal::numbers::MEBIBYTE;

/// `0.9600 ± 0.0002`
fn with_deviation(MeanDeviation { mean, deviation }: MeanDeviation) -> String {
    let digits = if mean.abs() < 100. { 4 } else { 1 };
    let deviation = deviation.map_or(String::new(), |d| format!(" ± {d:.digits$}"));
    format!("{mean:.digits$}{deviation}")
}

/// The cell of a missing value.
const MISSING: &str = "–";

impl Plan<'_> {
    /// The runs of a variant.
    fn of_variant(&self, variant: usize) -> impl Iterator<Item = &Run> {
        self.runs.iter().filter(move |run| run.variant == variant)
    }

    fn n_finished(&self, variant: usize) -> usize {
        self.of_variant(variant).filter_map(Run::summary).count()
    }

    /// The names of all metrics.
    pub(super) fn metrics(&self) -> BTreeSet<&str> {
        let finished = self.runs.iter().filter_map(Run::summary);
        finished.flat_map(|summary| summary.metrics.keys().map(String::as_str)).collect()
    }

    /// A metric of a variant over its seeds.
    pub(super) fn metric(&self, variant: usize, metric: &str) -> Option<MeanDeviation> {
        self.over_seeds(variant, |summary| summary.metrics.get(metric).copied())
    }

    /// The directories of a variant's finished runs.
    pub(super) fn directories(&self, variant: usize) -> Result<Vec<RunDirectory>> {
        let finished = self.of_variant(variant).filter(|run| run.summary().is_some());
        finished.filter_map(|run| self.directory(run).transpose()).collect()
    }

    /// Mean and deviation of a value over the finished runs of a variant.
    fn over_seeds(
        &self,
        variant: usize,
        value: impl Fn(&Summary) -> Option<f64>,
    ) -> Option<MeanDeviation> {
        let finished = self.of_variant(variant).filter_map(Run::summary);
        MeanDeviation::from_values(&finished.filter_map(value).collect::<Vec<_>>())
    }

    /// Whether all finished runs report tokens per second; otherwise the table shows examples per second.
    fn counts_tokens(&self) -> bool {
        let mut finished = self.runs.iter().filter_map(Run::summary).peekable();
        finished.peek().is_some() && finished.all(|summary| summary.tokens_per_second.is_some())
    }

    /// One row per variant.
    pub(super) fn table(&self) -> Table {
        let rate = if self.counts_tokens() { "tokens/s" } else { "examples/s" };
        let metrics = self.metrics();
        let axes = self.axes.iter().map(Axis::short_key);
        let axes = if self.axes.is_empty() { vec![""] } else { axes.collect() };
        let figures = ["parameters", rate, "memory (MiB)", "time (s)"];
        let heading =
            axes.into_iter().chain(["runs"]).chain(metrics.iter().copied()).chain(figures);
        let mut table = Table::new(heading);
        for (index, variant) in self.variants.iter().enumerate() {
            let name = self.axes.is_empty().then(|| variant.label(&[]));
            let values = variant.values.iter().map(|value| unquoted(value).to_owned());
            let mut row: Vec<String> = name.into_iter().chain(values).collect();
            row.push(self.count(index));
            row.extend(metrics.iter().map(|metric| {
                self.metric(index, metric).map_or(MISSING.to_owned(), with_deviation)
            }));
            row.extend(self.figures(index));
            table.row(row);
        }
        table
    }

    /// Number of finished runs of a variant: `3`, `2 of 3`.
    fn count(&self, variant: usize) -> String {
        let n_runs = self.of_variant(variant).count();
        match self.n_finished(variant) {
            _ if self.impossible.contains_key(&variant) => "impossible".to_owned(),
            n if n == n_runs => n.to_string(),
            n => format!("{n} of {n_runs}"),
        }
    }

    /// Parameters, speed, memory and time.
    fn figures(&self, variant: usize) -> [String; 4] {
        let [n_parameters, _, examples, tokens, memory, seconds] = self.means(variant);
        let rate = if self.counts_tokens() { tokens } else { examples };
        let whole = |n: Option<f64>| n.map_or(MISSING.to_owned(), |n| thousands(n.round() as u64));
        let seconds = seconds.map_or(MISSING.to_owned(), |seconds| format!("{seconds:.2}"));
        [whole(n_parameters), whole(rate), whole(memory.map(|bytes| bytes / MEBIBYTE)), seconds]
    }

    /// The means of [`FIGURES`] over the finished runs of a variant.
    fn means(&self, variant: usize) -> [Option<f64>; FIGURES.len()] {
        FIGURES.map(|(_, value)| self.over_seeds(variant, value).map(|result| result.mean))
    }

    /// Settings of variants that cannot do what their names say: each once, after the names of its variants, if not all
    /// variants have it.
    fn notes_on_settings(&self) -> Vec<String> {
        let mut notes: Vec<(&str, Vec<usize>)> = Vec::new();
        let mut n_variants = 0;
        for variant in 0..self.variants.len() {
            let Some(summary) = self.of_variant(variant).find_map(Run::summary) else { continue };
            n_variants += 1;
            for note in &summary.notes {
                match notes.iter_mut().find(|(other, _)| other == note) {
                    Some((_, variants)) => variants.push(variant),
                    None => notes.push((note, vec![variant])),
                }
            }
        }
        let line = |(note, of): (&str, Vec<usize>)| {
            let names: Vec<&str> = of.iter().map(|index| &*self.variants[*index].name).collect();
            if of.len() == n_variants {
                format!("note: {note}")
            } else {
                format!("note: {}: {note}", names.join("; "))
            }
        };
        notes.into_iter().map(line).collect()
    }

    /// Notes below the table: impossible variants, failed runs, and settings without effect.
    pub(super) fn notes(&self) -> Vec<String> {
        let impossible = self.impossible.iter().map(|(&index, message)| {
            let name = &self.variants[index].name;
            format!("impossible: {name}: {}", first_line(message))
        });
        let failed = self.runs.iter().filter_map(|run| {
            Some(format!("failed: {}: {}", run.name, first_line(run.failure()?)))
        });
        impossible.chain(failed).chain(self.notes_on_settings()).collect()
    }

    /// The table in Markdown with its legend and notes.
    pub(super) fn markdown(&self) -> String {
        let notes: Vec<String> =
            self.notes().into_iter().map(|note| format!("- {note}\n")).collect();
        let notes = if notes.is_empty() { String::new() } else { format!("\n{}", notes.concat()) };
        format!("{}\n{}\n{notes}", self.table().markdown(), self.legend())
    }

    /// One line per variant, with unrounded numbers.
    pub(super) fn csv(&self) -> String {
        let metrics = self.metrics();
        let axes = self.axes.iter().map(|axis| axis.key.clone());
        let spreads =
            metrics.iter().flat_map(|name| [format!("{name}_mean"), format!("{name}_sd")]);
        let figures = FIGURES.iter().map(|(name, _)| (*name).to_owned());
        let counts = ["n_finished", "n_failed"].map(str::to_owned);
        let mut lines = vec![axes.chain(counts).chain(spreads).chain(figures).collect::<Vec<_>>()];
        for (index, variant) in self.variants.iter().enumerate() {
            lines.push(self.csv_row(index, variant, &metrics));
        }
        let joined = |cells: &Vec<String>| {
            let cells: Vec<String> = cells.iter().map(|cell| csv_cell(cell)).collect();
            cells.join(",") + "\n"
        };
        lines.iter().map(joined).collect()
    }

    fn csv_row(&self, index: usize, variant: &Variant, metrics: &BTreeSet<&str>) -> Vec<String> {
        let number = |number: Option<f64>| number.map_or(String::new(), |n| n.to_string());
        let values = variant.values.iter().map(|value| unquoted(value).to_owned());
        let n_failed = self.of_variant(index).filter_map(Run::failure).count();
        let counts = [self.n_finished(index), n_failed].map(|n| n.to_string());
        let spreads = metrics.iter().flat_map(|metric| {
            let result = self.metric(index, metric);
            [number(result.map(|r| r.mean)), number(result.and_then(|r| r.deviation))]
        });
        let figures = self.means(index).map(number);
        values.chain(counts).chain(spreads).chain(figures).collect()
    }

    /// Everything, including single runs.
    pub(super) fn json(&self) -> Value {
        let args = self.args;
        let variants = self.variants.iter().enumerate();
        json!({
            "config": args.config.path.display().to_string(),
            "set": args.config.overrides,
            "vary": self.axes.iter().map(|axis| {
                (axis.key.clone(), json!(axis.values))
            }).collect::<Map<_, _>>(),
            "seeds": args.seeds.iter().collect::<Vec<_>>(),
            "device": args.device.to_string(),
            "jobs": args.jobs,
            "variants": variants.map(|(index, variant)| self.variant(index, variant)).collect::<Vec<_>>(),
        })
    }

    fn variant(&self, index: usize, variant: &Variant) -> Value {
        let keys = self.axes.iter().map(|axis| axis.key.clone());
        let metrics = self.metrics();
        let spreads = metrics.iter().filter_map(|metric| {
            let MeanDeviation { mean, deviation } = self.metric(index, metric)?;
            Some(((*metric).to_owned(), json!({ "mean": mean, "sd": deviation })))
        });
        let figures = FIGURES.iter().zip(self.means(index));
        let figures = figures.map(|((name, _), mean)| ((*name).to_owned(), json!(mean)));
        json!({
            "label": variant.label(&self.axes),
            "settings": keys.zip(variant.values.iter().map(|value| json!(unquoted(value)))).collect::<Map<_, _>>(),
            "impossible": self.impossible.get(&index),
            "n_finished": self.n_finished(index),
            "metrics": spreads.collect::<Map<_, _>>(),
            "means": figures.collect::<Map<_, _>>(),
            "runs": self.of_variant(index).map(|run| self.run(run)).collect::<Vec<_>>(),
        })
    }

    fn run(&self, run: &Run) -> Value {
        let directory = self.directory(run).ok().flatten();
        let state = match run.outcome() {
            None => "waiting",
            Some(Ok(_)) => "finished",
            Some(Err(_)) => "failed",
        };
        json!({
            "seed": run.seed,
            "name": run.name,
            "directory": directory.map(|directory| directory.path().display().to_string()),
            "state": state,
            "message": run.failure(),
            "summary": run.summary(),
        })
    }

    /// The legend of the table.
    pub(super) fn legend(&self) -> String {
        format!(
            "Mean ± standard deviation over {}. Memory: peak memory of the process. Time: updates only, \
             without evaluations.",
            match self.args.seeds.count() {
                1 => "one seed (no deviation)".to_owned(),
                n => format!("{n} seeds"),
            }
        )
    }
}

type Figure = (&'static str, fn(&Summary) -> Option<f64>);

/// Quantities that are averaged in addition to the metrics.
const FIGURES: [Figure; 6] = [
    ("n_parameters", |summary| Some(summary.n_parameters as f64)),
    ("steps_per_second", |summary| Some(summary.steps_per_second)),
    ("examples_per_second", |summary| Some(summary.examples_per_second)),
    ("tokens_per_second", |summary| summary.tokens_per_second),
    ("peak_memory_bytes", |summary| Some(summary.peak_memory_bytes? as f64)),
    ("seconds", |summary| Some(summary.seconds)),
];

/// A cell of a CSV file (RFC 4180).
fn csv_cell(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_standard_deviation_divides_by_n_minus_1() {
        assert_eq!(MeanDeviation::from_values(&[]), None);
        assert_eq!(
            MeanDeviation::from_values(&[3.]),
            Some(MeanDeviation { mean: 3., deviation: None })
        );
        let spread = MeanDeviation::from_values(&[1., 2., 3.]);
        assert_eq!(spread, Some(MeanDeviation { mean: 2., deviation: Some(1.) }));
        assert_eq!(with_deviation(spread.unwrap()), "2.0000 ± 1.0000");
        assert_eq!(with_deviation(MeanDeviation::from_values(&[123.456]).unwrap()), "123.5");
    }

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        assert_eq!(csv_cell("softmax"), "softmax");
        assert_eq!(csv_cell("{kind=\"a\",n=1}"), "\"{kind=\"\"a\"\",n=1}\"");
    }
}
