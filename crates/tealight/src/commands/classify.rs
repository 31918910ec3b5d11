//! `tealight classify MODEL TEXT`

use std::fmt::Write;
use std::sync::Arc;

use anyhow::Result;
use serde_json::{Value, json};
use tealight_train::task::classify::Classified;

use crate::args::predict as args;
use crate::runs::load::RunOrFolder;
use crate::terminal::input;
use crate::terminal::output::{print, print_json};

pub(crate) fn run(args: &args::Classify) -> Result<()> {
    let (task, model) = match RunOrFolder::open(&args.model)? {
        RunOrFolder::Run(run) => {
            let settings = run.loaded.config.task.settings().classifier();
            let settings = settings.ok_or_else(|| run.is_not_for("classify", "classify"))?;
            let session = run.load(run.task(settings)?)?;
            (session.task, session.eval_model)
        }
        RunOrFolder::Folder(pretrained, device) => {
            let (task, model) = pretrained.classifier(&device)?;
            (Arc::new(task), model)
        }
    };
    let texts = input::texts(&args.texts, None)?;
    let classified = task.classify(&model, &texts)?;
    let labels = task.labels().names();
    if args.json {
        return print_json(&as_json(&texts, labels, &classified));
    }
    print(&as_text(labels, &classified))
}

/// One line per text: the predicted label, then all labels with their probabilities.
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

fn as_json(texts: &[String], labels: &[String], classified: &[Classified]) -> Value {
    let one = |(text, Classified { label, probabilities }): (&String, &Classified)| {
        let probabilities: serde_json::Map<_, _> =
            labels.iter().cloned().zip(probabilities.iter().map(|&p| json!(p))).collect();
        json!({ "text": text, "label": label, "probabilities": probabilities })
    };
    let all: Vec<_> = texts.iter().zip(classified).map(one).collect();
    json!({ "classified": all })
}
