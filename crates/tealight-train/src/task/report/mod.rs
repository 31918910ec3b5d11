//! The evaluation of a trained model, as data: a task fills a [`Report`], which is written here as text and as JSON.
//!
//! ```text
//! text                                                    JSON
//!               accuracy      NLL     columns
//! ───────────────────────────────
//! majority        0.3502   1.0976     a baseline's row    {"majority_accuracy": 0.3502, "majority_nll": 1.0976,
//! transformer     0.9412   0.2405     the model's row     "accuracy": 0.9412, "nll": 0.2405,
//! Bayes limit     0.9600   0.1955     the limit's row     "bayes_accuracy": 0.96, "bayes_nll": 0.1955,
//! over 100 pictures held out          footnote            "n_pictures": 100,
//!
//! class   pictures   precision   …    a section           "labels": [{"label": …}, …]}
//! ```
//!
//! Rows are shown in the order of [`Predictor`]; JSON has the order in which a task adds its values. `report.json` has
//! no format version: a name in it says whose score of which metric it is ([`Predictor::of_key`]), in all runs.

pub(super) mod bins;
pub(super) mod classes;
pub(super) mod reference;

use std::collections::BTreeMap;
use std::fmt;
use std::iter::once;

use serde::Serialize;
use serde_json::{Map, Value, json};

pub use reference::{Predictor, ReferenceScore};

use crate::data::shown::on_one_line;
use crate::inference::decision::Decision;
use crate::task::illustration::Illustration;
use crate::task::table::{Table, thousands};

/// Characters of a text in a cell.
const MAX_TEXT: usize = 60;

/// A metric, and the heading of its column.
type Column = (&'static str, &'static str);

/// The evaluation of a trained model beside its baselines.
#[derive(Debug, Default)]
pub struct Report {
    columns: &'static [Column],
    rows: BTreeMap<Predictor, Row>,
    /// The text that is printed in place of a score that a row lacks; empty by default.
    pub(super) no_score: &'static str,
    /// What the scores are computed from.
    pub(super) footnote: String,
    /// Below the footnote.
    sections: Vec<String>,
    /// The content of `report.json`, also printed with `--json`.
    pub values: Map<String, Value>,
    /// The numbers by which runs are compared.
    pub metrics: BTreeMap<String, f64>,
    /// What is fitted to the probabilities of the model, for its run to keep.
    pub decision: Option<Decision>,
    /// What counts as learnt, where a limit is known.
    pub goal: Option<Goal>,
    /// Drawings with the names of their files.
    pub illustrations: Vec<(&'static str, Illustration)>,
}

/// A value of a metric of evaluations at which most is learnt.
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    /// The metric.
    pub metric: &'static str,
    /// That of a baseline.
    pub baseline: f64,
    /// The best possible one.
    pub limit: f64,
}

impl Goal {
    /// Whether `value` is as good as 90 % of the way from the baseline to the limit, or better.
    pub fn is_reached(&self, value: f64) -> bool {
        (value - self.baseline) / (self.limit - self.baseline) >= 0.9
    }
}

/// The scores of a predictor by metric.
#[derive(Debug)]
struct Row {
    name: String,
    scores: Vec<(&'static str, f64)>,
}

impl Row {
    /// The score as it is shown. A perplexity is that of the loss, where it is not given.
    fn cell(&self, metric: &str) -> Option<String> {
        let score = |metric| self.scores.iter().find(|(name, _)| *name == metric).map(|one| one.1);
        match metric {
            "perplexity" => score("loss").map(|loss| format!("{:.2}", loss.exp())),
            _ => score(metric).map(|score| format!("{score:.4}")),
        }
    }
}

/// What a footnote says of examples that are the validation split, if they are it, and not other data.
pub(super) fn held_out_if(is_validation: bool) -> &'static str {
    if is_validation { " held out for validation" } else { "" }
}

impl Report {
    /// A report without rows, with these columns.
    pub(super) fn new(columns: &'static [Column]) -> Self {
        Self { columns, ..Self::default() }
    }

    /// Adds the scores of the model, by which runs are compared.
    pub(super) fn model(&mut self, scores: impl IntoIterator<Item = (&'static str, f64)>) {
        let scores = Vec::from_iter(scores);
        self.metrics.extend(scores.iter().map(|&(metric, score)| (metric.to_owned(), score)));
        self.row(Predictor::Model, Predictor::Model.name(), scores);
    }

    /// Adds the scores of a predictor: as a row that is called `name`, and in JSON.
    pub(super) fn row(
        &mut self,
        predictor: Predictor,
        name: impl Into<String>,
        scores: impl IntoIterator<Item = (&'static str, f64)>,
    ) {
        let scores = Vec::from_iter(scores);
        for &(metric, score) in &scores {
            self.values.extend(predictor.key(metric).map(|key| (key, Value::from(score))));
        }
        self.rows.insert(predictor, Row { name: name.into(), scores });
    }

    /// Adds the report on other data, those of the file `test`, which neither trained the model nor chose the checkpoint:
    /// below all else, and in JSON as `test`.
    pub fn add_test(&mut self, test: &str, other: Self) {
        self.section(&format!("test data, {}:\n\n{other}", on_one_line(test)));
        let mut values = other.values;
        values.insert("data".to_owned(), json!(test));
        self.value("test", values);
    }

    /// Adds a table below all else, and its values to JSON as `name`.
    pub fn add_table(&mut self, name: &str, table: &Table, values: Map<String, Value>) {
        self.section(table);
        self.value(name, values);
    }

    /// Adds a value to JSON.
    pub(super) fn value(&mut self, name: &str, value: impl Serialize) {
        self.values.insert(name.to_owned(), json!(value));
    }

    /// Adds the standard error of a metric of the model that is a share of `n` items, to JSON; returns it.
    pub(super) fn standard_error(&mut self, metric: &str, n: usize) -> f64 {
        let share = self.metrics[metric];
        let error = (share * (1. - share) / n as f64).sqrt();
        self.value(&format!("{metric}_standard_error"), error);
        error
    }

    /// Adds the remark that the model is no better than the majority, if it is not, below the footnote; to JSON whether
    /// it is.
    pub(super) fn add_remark(&mut self, remark: Option<String>) {
        self.value("no_better_than_majority", remark.is_some());
        let lines = [std::mem::take(&mut self.footnote)].into_iter().chain(remark);
        self.footnote = lines.collect::<Vec<_>>().join("\n");
    }

    /// Adds a table or a text of whole lines below the rows.
    pub(super) fn section(&mut self, text: &impl ToString) {
        self.sections.push(text.to_string());
    }

    /// Adds a list of objects to JSON. Its first `n_shown` are a table below the rows, with these headings and keys.
    pub(super) fn list(
        &mut self,
        name: &str,
        list: Vec<Value>,
        columns: &[(&str, &str)],
        n_shown: usize,
    ) {
        self.table(&list[..n_shown.min(list.len())], columns);
        self.value(name, list);
    }

    /// Adds a table of objects below the rows, with these headings and keys; nothing of none.
    pub(super) fn table(&mut self, objects: &[Value], columns: &[(&str, &str)]) {
        if objects.is_empty() {
            return;
        }
        let mut table = Table::new(columns.iter().map(|(heading, _)| *heading));
        for object in objects {
            table.row(columns.iter().map(|(_, key)| cell(key, &object[key])));
        }
        self.section(&table);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table =
            Table::new(once("").chain(self.columns.iter().map(|(_, heading)| *heading)));
        for row in self.rows.values() {
            let cell = |metric| row.cell(metric).unwrap_or_else(|| self.no_score.to_owned());
            let cells = self.columns.iter().map(|(metric, _)| cell(metric));
            table.row(once(row.name.clone()).chain(cells));
        }
        writeln!(f, "{table}{}", self.footnote)?;
        self.sections.iter().try_for_each(|section| write!(f, "\n{section}"))
    }
}

/// The value of `key` in a cell of a list. What is not finite is null in JSON.
fn cell(key: &str, value: &Value) -> String {
    match (key, value) {
        ("text", Value::String(text)) => text.chars().take(MAX_TEXT).collect(),
        (_, Value::String(text)) => text.clone(),
        (_, Value::Number(number)) => match number.as_u64() {
            Some(whole) => thousands(whole),
            None => format!("{:.4}", number.as_f64().unwrap_or(f64::NAN)),
        },
        _ => f64::NAN.to_string(),
    }
}
