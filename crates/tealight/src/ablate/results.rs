//! What came of the runs: means and standard deviations over the seeds, as tables.

use std::collections::BTreeSet;

use anyhow::Result;
use serde_json::{Map, Value, json};
use tealight_train::run::RunDirectory;
use tealight_train::task::table::{Table, thousands};

use super::plan::{Plan, Run};
use super::vary::{Axis, Variant, unquoted};
use super::work::Outcome;
use crate::args::ablate::Ablate;
use crate::runs::summary::Summary;
use crate::system::subprocess::first_line;

/// A plan with what has become of its runs so far.
#[derive(Debug)]
pub(super) struct Results<'a> {
    pub(super) plan: &'a Plan,
    /// For each run of the plan; `None` while it is not over.
    pub(super) outcomes: Vec<Option<Outcome>>,
}

/// A mean over seeds, and their standard deviation (with n − 1) where there are several.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub(super) mean: f64,
    pub(super) deviation: Option<f64>,
}

impl Spread {
    /// `None` of no values.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        let deviation = (values.len() > 1).then(|| (squares / (n - 1.)).sqrt());
        (!values.is_empty()).then_some(Self { mean, deviation })
    }

    /// `0.9600 ± 0.0002`
    fn shown(self) -> String {
        let digits = if self.mean.abs() < 100. { 4 } else { 1 };
        let deviation = self.deviation.map_or(String::new(), |d| format!(" ± {d:.digits$}"));
        format!("{:.digits$}{deviation}", self.mean)
    }
}

/// Stands where there is no number.
const NOTHING: &str = "–";

impl<'a> Results<'a> {
    /// The summaries of a variant's finished runs.
    pub(super) fn summaries(&self, variant: usize) -> Vec<&Summary> {
        self.of_variant(variant)
            .filter_map(|(_, outcome)| match outcome {
                Some(Outcome::Finished(summary)) => Some(summary),
                _ => None,
            })
            .collect()
    }

    /// The names of all that was measured.
    pub(super) fn metrics(&self) -> BTreeSet<&str> {
        let finished = (0..self.plan.variants.len()).flat_map(|variant| self.summaries(variant));
        finished.flat_map(|summary| summary.metrics.keys().map(String::as_str)).collect()
    }

    /// A metric of a variant.
    pub(super) fn spread(&self, variant: usize, metric: &str) -> Option<Spread> {
        self.over_seeds(variant, |summary| summary.metrics.get(metric).copied())
    }

    /// Where a variant's finished runs are.
    pub(super) fn directories(&self, variant: usize) -> Result<Vec<RunDirectory>> {
        let finished = self.of_variant(variant);
        let finished =
            finished.filter(|(_, outcome)| matches!(outcome, Some(Outcome::Finished(_))));
        finished.filter_map(|(run, _)| self.plan.directory(run).transpose()).collect()
    }

    /// How many runs have failed.
    pub(super) fn n_failed(&self) -> usize {
        let failed = |outcome: &&Option<Outcome>| matches!(outcome, Some(Outcome::Failed(_)));
        self.outcomes.iter().filter(failed).count()
    }

    fn of_variant(&self, variant: usize) -> impl Iterator<Item = (&'a Run, Option<&Outcome>)> {
        let runs = self.plan.runs.iter().zip(&self.outcomes);
        runs.filter(move |(run, _)| run.variant == variant)
            .map(|(run, outcome)| (run, outcome.as_ref()))
    }

    fn over_seeds(
        &self,
        variant: usize,
        value: impl Fn(&Summary) -> Option<f64>,
    ) -> Option<Spread> {
        Spread::of(&self.summaries(variant).into_iter().filter_map(value).collect::<Vec<_>>())
    }

    /// Tokens per second where everything counts tokens, else examples.
    fn counts_tokens(&self) -> bool {
        let all = (0..self.plan.variants.len()).flat_map(|variant| self.summaries(variant));
        let mut all = all.peekable();
        all.peek().is_some() && all.all(|summary| summary.tokens_per_second.is_some())
    }

    /// A row for each variant.
    pub(super) fn table(&self) -> Table {
        let rate = if self.counts_tokens() { "tokens/s" } else { "examples/s" };
        let metrics = self.metrics();
        let axes = self.plan.axes.iter().map(Axis::short_key);
        let axes = if self.plan.axes.is_empty() { vec![""] } else { axes.collect() };
        let figures = ["parameters", rate, "memory (MiB)", "time (s)"];
        let heading =
            axes.into_iter().chain(["runs"]).chain(metrics.iter().copied()).chain(figures);
        let mut table = Table::with_heading(heading.map(str::to_owned).collect());
        for (index, variant) in self.plan.variants.iter().enumerate() {
            let name = self.plan.axes.is_empty().then(|| variant.label(&[]));
            let values = variant.values.iter().map(|value| unquoted(value).to_owned());
            let mut row: Vec<String> = name.into_iter().chain(values).collect();
            row.push(self.count(index));
            let shown = |spread: Option<Spread>| spread.map_or(NOTHING.to_owned(), Spread::shown);
            row.extend(metrics.iter().map(|metric| shown(self.spread(index, metric))));
            row.extend(self.figures(index));
            table.push(row);
        }
        table
    }

    /// How many runs of a variant have finished: `3`, `2 of 3`.
    fn count(&self, variant: usize) -> String {
        let n_runs = self.of_variant(variant).count();
        match self.summaries(variant).len() {
            _ if self.plan.impossible.contains_key(&variant) => "impossible".to_owned(),
            n if n == n_runs => n.to_string(),
            n => format!("{n} of {n_runs}"),
        }
    }

    /// Parameters, speed, memory and time.
    fn figures(&self, variant: usize) -> [String; 4] {
        let mean = |value: fn(&Summary) -> Option<f64>| {
            self.over_seeds(variant, value).map(|spread| spread.mean)
        };
        let rate = if self.counts_tokens() {
            mean(|summary| summary.tokens_per_second)
        } else {
            mean(|summary| Some(summary.examples_per_second))
        };
        let whole = |number: Option<f64>| {
            number.map_or(NOTHING.to_owned(), |number| thousands(number.round() as u64))
        };
        let memory = mean(|summary| Some(summary.peak_memory_bytes? as f64));
        [
            whole(mean(|summary| Some(summary.n_parameters as f64))),
            whole(rate),
            whole(memory.map(|bytes| bytes / f64::from(1 << 20))),
            mean(|summary| Some(summary.seconds))
                .map_or(NOTHING.to_owned(), |seconds| format!("{seconds:.2}")),
        ]
    }

    /// What the table leaves to be said.
    pub(super) fn notes(&self) -> Vec<String> {
        let impossible = self.plan.impossible.iter().map(|(&index, message)| {
            let name = &self.plan.variants[index].name;
            format!("impossible: {name}: {}", first_line(message.trim_start_matches("error: ")))
        });
        let runs = self.plan.runs.iter().zip(&self.outcomes);
        let failed = runs.filter_map(|(run, outcome)| match outcome {
            Some(Outcome::Failed(message)) => {
                Some(format!("failed: {}: {}", run.name, first_line(message)))
            }
            _ => None,
        });
        impossible.chain(failed).collect()
    }

    /// The table as Markdown, with what is to be known of it.
    pub(super) fn markdown(&self, args: &Ablate) -> String {
        let notes: Vec<String> =
            self.notes().into_iter().map(|note| format!("- {note}\n")).collect();
        let notes = if notes.is_empty() { String::new() } else { format!("\n{}", notes.concat()) };
        format!("{}\n{}\n{notes}", self.table().markdown(), legend(args))
    }

    /// A line for each variant, with the numbers in full.
    pub(super) fn csv(&self) -> String {
        let metrics = self.metrics();
        let axes = self.plan.axes.iter().map(|axis| axis.key.clone());
        let spreads =
            metrics.iter().flat_map(|name| [format!("{name}_mean"), format!("{name}_sd")]);
        let figures = FIGURES.iter().map(|(name, _)| (*name).to_owned());
        let counts = ["n_finished", "n_failed"].map(str::to_owned);
        let mut lines = vec![axes.chain(counts).chain(spreads).chain(figures).collect::<Vec<_>>()];
        for (index, variant) in self.plan.variants.iter().enumerate() {
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
        let is_failed = |outcome: Option<&Outcome>| matches!(outcome, Some(Outcome::Failed(_)));
        let n_failed = self.of_variant(index).filter(|(_, outcome)| is_failed(*outcome)).count();
        let counts = [self.summaries(index).len(), n_failed].map(|n| n.to_string());
        let spreads = metrics.iter().flat_map(|metric| {
            let spread = self.spread(index, metric);
            [number(spread.map(|s| s.mean)), number(spread.and_then(|s| s.deviation))]
        });
        let figures = FIGURES
            .iter()
            .map(|(_, value)| number(self.over_seeds(index, value).map(|spread| spread.mean)));
        values.chain(counts).chain(spreads).chain(figures).collect()
    }

    /// Everything, down to the single runs.
    pub(super) fn json(&self, args: &Ablate) -> Value {
        let variants = self.plan.variants.iter().enumerate();
        json!({
            "config": args.config.display().to_string(),
            "set": args.overrides,
            "vary": self.plan.axes.iter().map(|axis| {
                (axis.key.clone(), json!(axis.values))
            }).collect::<Map<_, _>>(),
            "seeds": args.seeds.iter().collect::<Vec<_>>(),
            "device": args.device.to_string(),
            "jobs": args.jobs,
            "variants": variants.map(|(index, variant)| self.variant(index, variant)).collect::<Vec<_>>(),
        })
    }

    fn variant(&self, index: usize, variant: &Variant) -> Value {
        let keys = self.plan.axes.iter().map(|axis| axis.key.clone());
        let metrics = self.metrics();
        let spreads = metrics.iter().filter_map(|metric| {
            let Spread { mean, deviation } = self.spread(index, metric)?;
            Some(((*metric).to_owned(), json!({ "mean": mean, "sd": deviation })))
        });
        let figures = FIGURES.iter().map(|(name, value)| {
            let mean = self.over_seeds(index, value).map(|spread| spread.mean);
            ((*name).to_owned(), json!(mean))
        });
        json!({
            "label": variant.label(&self.plan.axes),
            "settings": keys.zip(variant.values.iter().map(|value| json!(unquoted(value)))).collect::<Map<_, _>>(),
            "impossible": self.plan.impossible.get(&index),
            "n_finished": self.summaries(index).len(),
            "metrics": spreads.collect::<Map<_, _>>(),
            "means": figures.collect::<Map<_, _>>(),
            "runs": self.of_variant(index).map(|(run, outcome)| self.run(run, outcome)).collect::<Vec<_>>(),
        })
    }

    fn run(&self, run: &Run, outcome: Option<&Outcome>) -> Value {
        let directory = self.plan.directory(run).ok().flatten();
        let (state, summary, message) = match outcome {
            None => ("waiting", None, None),
            Some(Outcome::Finished(summary)) => ("finished", Some(summary), None),
            Some(Outcome::Failed(message)) => ("failed", None, Some(message)),
        };
        json!({
            "seed": run.seed,
            "name": run.name,
            "directory": directory.map(|directory| directory.path().display().to_string()),
            "state": state,
            "message": message,
            "summary": summary,
        })
    }
}

/// What the table's figures mean.
pub(super) fn legend(args: &Ablate) -> String {
    format!(
        "Mean ± standard deviation over {}. Memory: the most that the process held. Time: of the \
         updates alone.",
        match args.seeds.count() {
            1 => "one seed, which has none".to_owned(),
            n => format!("{n} seeds"),
        }
    )
}

type Figure = (&'static str, fn(&Summary) -> Option<f64>);

/// What is averaged beside the metrics.
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
    fn the_deviation_is_that_of_a_sample() {
        assert_eq!(Spread::of(&[]), None);
        assert_eq!(Spread::of(&[3.]), Some(Spread { mean: 3., deviation: None }));
        let spread = Spread::of(&[1., 2., 3.]);
        assert_eq!(spread, Some(Spread { mean: 2., deviation: Some(1.) }));
        assert_eq!(spread.unwrap().shown(), "2.0000 ± 1.0000");
        assert_eq!(Spread::of(&[123.456]).unwrap().shown(), "123.5");
    }

    #[test]
    fn cells_with_commas_and_quotes_are_quoted() {
        assert_eq!(csv_cell("softmax"), "softmax");
        assert_eq!(csv_cell("{kind=\"a\",n=1}"), "\"{kind=\"\"a\"\",n=1}\"");
    }
}
