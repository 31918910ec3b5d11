//! Training a model to rank passages agrees with the losses and gradients of `CrossEncoder` of sentence-transformers.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tealight_ops::testing::device;
use tealight_train::task::rerank::Rerank;
use tealight_train::task::{TaskConfig, TaskContext, TaskKind as _};
use tealight_train::trained::TrainedModel;
use tealight_train::training::Session;

use crate::record::{Faults, Record, golden};
use crate::task_loss;

/// `[task.loss]` of a recorded case, and how many passages a query has; `None` of one that is no loss of this task.
fn settings(name: &str) -> Option<&'static str> {
    Some(match name {
        "bce" => "kind = \"binary\"",
        "bce_pos_weight_5" => "kind = \"binary\"\npositive_weight = 5.0",
        "mse" => "kind = \"mse\"",
        "margin_mse" => "kind = \"margin_mse\"",
        "listnet" => "kind = \"list_net\"",
        "ranknet" => "kind = \"rank_net\"",
        "lambda" => "kind = \"lambda\"",
        _ => return None,
    })
}

/// The rows of a case as JSON lines.
fn rows(case: &Value) -> Vec<String> {
    let columns: Vec<&Vec<Value>> =
        case["columns"].as_array().unwrap().iter().map(|one| one.as_array().unwrap()).collect();
    let mut rows = Vec::new();
    for (at, query) in columns[0].iter().enumerate() {
        let label = &case["labels"][at];
        match (&columns[1][at], columns.get(2)) {
            (Value::Array(passages), _) => rows.extend(passages.iter().enumerate().map(|(n, passage)| {
                json!({ "query": query, "passage": passage, "label": label[n] }).to_string()
            })),
            (positive, Some(negatives)) => rows.push(
                json!({ "query": query, "positive": positive, "negative": negatives[at], "label": label })
                    .to_string(),
            ),
            (passage, None) => {
                rows.push(json!({ "query": query, "passage": passage, "label": label }).to_string());
            }
        }
    }
    rows
}

/// A session of the task on the rows of a case, whose first batch is all of them.
fn session(record: &Record, folder: &Path, name: &str, case: &Value) -> Option<Session<Rerank>> {
    let loss = settings(name)?;
    let rows = rows(case).join("\n");
    let quoted = |path: &Path| json!(path.display().to_string()).to_string();
    let [path, validation] = ["rows.jsonl", "validation.jsonl"].map(|name| folder.join(name));
    fs::write(&path, &rows).unwrap();
    fs::write(&validation, &rows).unwrap();
    let n = case["columns"][0].as_array().unwrap().len();
    let text = format!(
        "init_from = {}\n[task]\nkind = \"rerank\"\nseq_len = 40\n[task.loss]\n{loss}\n[task.data]\npath = {}\n\
         validation_path = {}\n[training]\nsteps = 1\nbatch_size = {n}\n",
        quoted(&record.folder),
        quoted(&path),
        quoted(&validation)
    );
    let model = TrainedModel::open(&record.folder, None).unwrap();
    let config = task_loss::config(&model, &text);
    let TaskConfig::Rerank(task) = &config.task else { panic!("{:?}", config.task) };
    let context = TaskContext::new(config.seed, n, &config.model, device());
    let mut session = Session::new(&config, task.build(&context).unwrap(), device()).unwrap();
    let report = session.begin_with(&model).unwrap();
    assert!(report.fresh.is_empty(), "{report}");
    Some(session)
}

#[test]
fn losses_and_gradients_are_those_of_a_cross_encoder() {
    let record = Record::read(golden().join("ranker"), &Value::Null);
    let (mut faults, mut n, mut n_losses) = (Faults::default(), 0, 0);
    for (name, case) in record.expected["losses"].as_object().unwrap() {
        let folder = tempfile::tempdir().unwrap();
        if let Some(session) = session(&record, folder.path(), name, case) {
            n += task_loss::check(&session, &record, (name, case), &mut faults);
            n_losses += 1;
        }
    }
    assert!(n > 100 && n_losses == 7, "{n} {n_losses}");
    faults.none();
}
