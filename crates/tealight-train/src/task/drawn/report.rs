//! The scores of a model beside the baselines and the limit, on its own examples and on those of each test.

use serde_json::{Map, Value, json};
use tealight_model::models::forecaster::Forecaster;

use super::example::Example;
use super::scores::Scores;
use super::source::Source;
use super::{DrawnTask, Reference};
use crate::error::Result;
use crate::task::report::bins::table;
use crate::task::report::{Goal, Predictor, Report};
use crate::task::table::{Table, thousands};

/// Scores on the test part and on each test, or on the examples of a file.
pub(super) fn report(task: &DrawnTask, model: &Forecaster) -> Result<Report> {
    let source = task.source.as_ref();
    let examples = if task.is_test { task.validation.clone() } else { task.test_part(source) };
    let scores = task.scores(model, source, &examples)?;
    let mut report = Report::new(source.columns());
    report.model(all(source, &scores));
    let references = source.references(&examples);
    report.goal = goal(source, &references);
    for Reference { predictor, name, scores } in references {
        report.row(predictor, name, scores);
    }
    report.value("n_test", examples.len());
    let error = scores.standard_error();
    report.value("accuracy_standard_error", error);
    let n = thousands(examples.len() as u64);
    report.footnote =
        format!("over {n} test examples; standard error of the transformer's accuracy {error:.4}");
    add_bins(&mut report, source, &scores);
    if !task.is_test && !task.tests.is_empty() {
        add_tests(&mut report, task, model)?;
    }
    Ok(report)
}

/// The way from the baseline of a source to the limit, by the accuracy of evaluations or else by their loss.
fn goal(source: &dyn Source, references: &[Reference]) -> Option<Goal> {
    let score = |predictor, metric| {
        let reference = references.iter().find(|one| one.predictor == predictor)?;
        reference.scores.iter().find(|(name, _)| *name == metric).map(|one| one.1)
    };
    let between = |metric, of_report| {
        let baseline = score(source.baseline(), of_report)?;
        Some(Goal { metric, baseline, limit: score(Predictor::Bayes, of_report)? })
    };
    between("accuracy", "accuracy").or_else(|| between("loss", "nll"))
}

/// All metrics.
fn all(source: &dyn Source, scores: &Scores) -> Vec<(&'static str, f64)> {
    let further = source.further(scores);
    let value = |metric: &'static str| {
        let value = match metric {
            "accuracy" => scores.accuracy(),
            "nll" => scores.nll(),
            "exact_match" => scores.exact_match(),
            "excess" => scores.excess(),
            _ => further.iter().find(|(name, _)| *name == metric)?.1,
        };
        Some((metric, value))
    };
    let columns =
        source.columns().iter().filter_map(|(metric, _)| value(metric)).collect::<Vec<_>>();
    let others = further.iter().filter(|(name, _)| columns.iter().all(|(known, _)| known != name));
    columns.iter().chain(others).copied().collect()
}

fn add_bins(report: &mut Report, source: &dyn Source, scores: &Scores) {
    let (heading, ranges) = source.places();
    let bins = scores.bins(ranges);
    report.section(&table(heading, "labels", &bins));
    report.value(&format!("by_{heading}"), bins);
}

/// A row for each test: the model's metrics, and the first of them of what it is compared with.
fn add_tests(report: &mut Report, task: &DrawnTask, model: &Forecaster) -> Result<()> {
    let columns = task.source.columns();
    let (first, _) = columns[0];
    let (mut list, mut rows, mut names) = (Vec::new(), Vec::new(), Vec::new());
    for (name, test) in &task.tests {
        let test = test.as_ref();
        let examples: Vec<Example> = task.test_part(test);
        let scores = task.scores(model, test, &examples)?;
        let own = all(test, &scores);
        let references = test.references(&examples);
        let mut value = json!({ "name": name, "seq_len": test.seq_len(), "n": examples.len() });
        let object = value.as_object_mut().expect("invariant: it is one");
        object.extend(own.iter().map(|&(metric, score)| (metric.to_owned(), json!(score))));
        object.insert("accuracy_standard_error".to_owned(), json!(scores.standard_error()));
        let (heading, ranges) = test.places();
        object.insert(format!("by_{heading}"), json!(scores.bins(ranges)));
        let mut beside = Map::new();
        for Reference { name, scores, .. } in &references {
            let scores = scores.iter().map(|&(metric, score)| (metric.to_owned(), json!(score)));
            beside.insert(name.clone(), Value::Object(scores.collect()));
        }
        object.insert("references".to_owned(), Value::Object(beside));
        let mut row = vec![name.clone(), test.seq_len().to_string()];
        let score = |metric: &str| own.iter().find(|(name, _)| *name == metric).map(|one| one.1);
        row.extend(columns.iter().map(|(metric, _)| cell(score(metric))));
        names = references.iter().map(|one| one.name.clone()).collect();
        row.extend(references.iter().map(|one| {
            cell(one.scores.iter().find(|(metric, _)| *metric == first).map(|one| one.1))
        }));
        rows.push(row);
        list.push(value);
    }
    let headings = columns.iter().map(|(_, heading)| (*heading).to_owned());
    let headings = ["test".to_owned(), "length".to_owned()].into_iter().chain(headings);
    let mut table = Table::new(headings.chain(names));
    for row in rows {
        table.row(row);
    }
    report.section(&table);
    report.value("tests", list);
    Ok(())
}

fn cell(score: Option<f64>) -> String {
    score.map_or(String::new(), |score| format!("{score:.4}"))
}
