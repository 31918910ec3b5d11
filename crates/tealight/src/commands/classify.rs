//! `tealight classify MODEL TEXT`, and what a classifier shows at the end.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use serde_json::json;
use tealight_train::task::TaskConfig;
use tealight_train::task::classify::{self, Classified, Classify, LabelScore, Report};

use super::load::{Found, Run};
use super::presented::Presented;
use super::{print, texts};

use crate::args;
use crate::failure::at_its_place;
use crate::table::{Table, thousands};

/// Labels up to which the confusion matrix is shown: it has a column for each.
const MAX_COLUMNS: usize = 12;

pub(crate) fn run(args: &args::Classify) -> Result<()> {
    let (task, model) = match Found::open(&args.model)? {
        Found::Run(run) => {
            let TaskConfig::Classify(config) = &run.config.task else {
                return Err(run.is_not_for("classify", "classify"));
            };
            let session = run.load(task(&run, config)?)?;
            (session.task, session.twin)
        }
        Found::Folder(pretrained, device) => {
            let (task, model) = pretrained.classifier(&device)?;
            (Arc::new(task), model)
        }
    };
    let texts = texts::given(&args.texts)?;
    let classified = task.classify(&model, &texts)?;
    let labels = task.labels().names();
    print(&if args.json {
        as_json(&texts, labels, &classified)
    } else {
        as_text(labels, &classified)
    })
}

/// The task of a run, with the tokenizer and the labels that the run has kept and without texts.
pub(super) fn task(run: &Run, config: &classify::Config) -> Result<Classify> {
    Classify::without_data(config, run.directory.path(), &run.device)
        .map_err(|error| at_its_place(error, &run.source))
}

/// A line for each text: the likeliest label, and all labels with their probabilities.
fn as_text(labels: &[String], classified: &[Classified]) -> String {
    let width = labels.iter().map(|label| label.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for Classified { label, probabilities } in classified {
        write!(text, "{label:<width$}").expect("invariant: a String grows");
        for (label, probability) in labels.iter().zip(probabilities) {
            let percent = 100. * probability;
            write!(text, "   {label} {percent:.1} %").expect("invariant: a String grows");
        }
        text.push('\n');
    }
    text
}

fn as_json(texts: &[String], labels: &[String], classified: &[Classified]) -> String {
    let one = |(text, Classified { label, probabilities }): (&String, &Classified)| {
        let probabilities: serde_json::Map<_, _> =
            labels.iter().cloned().zip(probabilities.iter().map(|&p| json!(p))).collect();
        json!({ "text": text, "label": label, "probabilities": probabilities })
    };
    let all: Vec<_> = texts.iter().zip(classified).map(one).collect();
    format!("{}\n", json!({ "classified": all }))
}

impl Presented for Classify {
    fn table(report: &Report) -> String {
        let mut scores = Table::new(["", "accuracy", "macro F1", "NLL"]);
        let of = |score: f64| format!("{score:.4}");
        let none = String::new;
        scores.row(["majority".to_owned(), of(report.majority_accuracy), none(), none()]);
        let Report { accuracy, macro_f1, nll, .. } = *report;
        scores.row(["transformer".to_owned(), of(accuracy), of(macro_f1), of(nll)]);
        format!(
            "{scores}over {} texts held out; standard error of the accuracy {:.4}\n\n{}{}",
            thousands(report.n_texts as u64),
            report.accuracy_standard_error,
            by_label(&report.labels),
            confusion(report)
        )
    }

    fn next_command(run: &Path) -> String {
        format!("tealight classify {} \"…\"", run.display())
    }
}

fn by_label(labels: &[LabelScore]) -> Table {
    let mut table = Table::new(["label", "texts", "precision", "recall", "F1"]);
    for LabelScore { label, precision, recall, f1, n_texts } in labels {
        let [precision, recall, f1] = [precision, recall, f1].map(|score| format!("{score:.4}"));
        table.row([shown(label), thousands(*n_texts), precision, recall, f1]);
    }
    table
}

/// A row for each label, a column for what was said instead; nothing if there are too many.
fn confusion(report: &Report) -> String {
    let labels: Vec<String> = report.labels.iter().map(|score| shown(&score.label)).collect();
    if labels.len() > MAX_COLUMNS {
        return String::new();
    }
    let heading = std::iter::once("label ╲ said".to_owned()).chain(labels.clone()).collect();
    let mut table = Table::with_heading(heading);
    for (label, row) in labels.into_iter().zip(&report.confusion) {
        table.push(std::iter::once(label).chain(row.iter().map(|&n| thousands(n))).collect());
    }
    format!("\n{table}")
}

/// A label in a cell.
fn shown(label: &str) -> String {
    label.escape_debug().to_string()
}
