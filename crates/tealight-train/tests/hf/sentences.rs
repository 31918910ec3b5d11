//! Training an encoder to embed sentences agrees with sentence-transformers: losses, gradients, updates.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tealight_ops::testing::device;
use tealight_train::optimizer::{OptimizerConfig, Parameter, adamw};
use tealight_train::task::embed::Embed;
use tealight_train::task::{TaskConfig, TaskContext, TaskKind as _};
use tealight_train::trained::TrainedModel;
use tealight_train::training::Session;

use crate::record::{Faults, Record, TRAINED_LOSS, golden};
use crate::task_loss::{self, gradients, loss, mean};

/// The folder with losses of embeddings.
fn encoder() -> Record {
    Record::read(golden().join("sentence_encoder"), &Value::Null)
}

/// `[task.loss]` and `[task.matryoshka]` of a recorded case; `None` of one that is no loss of this task.
fn settings(name: &str, case: &Value) -> Option<String> {
    let plain = name.trim_start_matches("matryoshka_");
    let loss = match plain.split('_').next()? {
        // The mini-batches of the record do not divide its batch; `fit.rs` checks those that do.
        "mnrl" | "gradcache" => {
            let scale = plain.split_once("scale_").map_or("20", |(_, scale)| scale);
            let symmetric = plain.contains("symmetric");
            format!("kind = \"multiple_negatives\"\nscale = {scale}.0\nsymmetric = {symmetric}")
        }
        "triplet" if plain.contains("cosine") => {
            let margin = plain.split_once("margin_").map_or("0.5", |(_, margin)| margin);
            format!("kind = \"triplet\"\ndistance = \"cosine\"\nmargin = {margin}")
        }
        "online" => "kind = \"online_contrastive\"".to_owned(),
        "margin" => "kind = \"margin_mse\"".to_owned(),
        kind @ ("cosent" | "angle" | "cosine" | "triplet" | "contrastive") => {
            format!("kind = \"{kind}\"")
        }
        _ => return None,
    };
    let list =
        |key: &str| case.get(key).map(|list| format!("{key} = {list}\n")).unwrap_or_default();
    Some(format!("[task.loss]\n{loss}\n[task.matryoshka]\n{}{}", list("dims"), list("weights")))
}

/// The rows of a case as JSON lines.
fn rows(case: &Value) -> String {
    let columns = case["columns"].as_array().unwrap();
    let line = |at: usize| {
        let fields = ["anchor", "positive", "negative"].into_iter().zip(columns);
        let mut row: Value =
            fields.map(|(name, column)| (name.to_owned(), column[at].clone())).collect();
        if let Some(labels) = case["labels"].as_array() {
            row["label"] = labels[at].clone();
        }
        row.to_string() + "\n"
    };
    (0..columns[0].as_array().unwrap().len()).map(line).collect()
}

/// A session of the task on the rows of a case, whose first batch is all of them.
fn session(record: &Record, folder: &Path, name: &str, case: &Value) -> Option<Session<Embed>> {
    let settings = settings(name, case)?;
    let path = folder.join("rows.jsonl");
    fs::write(&path, rows(case)).unwrap();
    let quoted = |path: &Path| json!(path.display().to_string()).to_string();
    let n = case["columns"][0].as_array().unwrap().len();
    let duplicates =
        if settings.contains("multiple_negatives") { "duplicates = \"keep\"" } else { "" };
    let text = format!(
        "init_from = {}\n[task]\nkind = \"embed\"\nprompts = {{ query = \"\" }}\n{settings}[task.data]\npath = {}\nvalidation_path = {}\n{duplicates}\n\
         [training]\nsteps = 1\nbatch_size = {n}\n",
        quoted(&record.folder),
        quoted(&path),
        quoted(&path.with_file_name("validation.jsonl"))
    );
    fs::copy(&path, path.with_file_name("validation.jsonl")).unwrap();
    let model = TrainedModel::open(&record.folder, None).unwrap();
    let config = task_loss::config(&model, &text);
    let TaskConfig::Embed(task) = &config.task else { panic!("{:?}", config.task) };
    let context = TaskContext::new(config.seed, n, &config.model, device());
    let mut session = Session::new(&config, task.build(&context).unwrap(), device()).unwrap();
    session.begin_with(&model).unwrap();
    Some(session)
}

#[test]
fn losses_and_gradients_are_those_of_sentence_transformers() {
    let (mut faults, mut n, record) = (Faults::default(), 0, encoder());
    for (name, case) in record.expected["losses"].as_object().unwrap() {
        let folder = tempfile::tempdir().unwrap();
        if let Some(session) = session(&record, folder.path(), name, case) {
            n += task_loss::check(&session, &record, (name, case), &mut faults);
        }
    }
    assert!(n > 200, "{n}");
    faults.none();
}

#[test]
fn updates_are_those_of_sentence_transformers() {
    let mut faults = Faults::default();
    let record = encoder();
    let recorded = &record.expected["trajectory"];
    let name = recorded["loss"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let session = session(&record, folder.path(), name, &record.expected["losses"][name]).unwrap();
    let optimizer = &recorded["optimizer"];
    let number = |value: &Value| value.as_f64().unwrap();
    let config = adamw::Config {
        lr: number(&optimizer["lr"]),
        beta1: number(&optimizer["betas"][0]),
        beta2: number(&optimizer["betas"][1]),
        epsilon: number(&optimizer["eps"]),
        weight_decay: number(&optimizer["weight_decay"]),
    };
    let parameters = session.params.iter().map(|(name, one)| Parameter::new(name, one)).collect();
    let mut updates = OptimizerConfig::AdamW(config.clone()).build(parameters).unwrap();
    for (step, expected) in recorded["losses"].as_array().unwrap().iter().enumerate() {
        let loss = loss(&session);
        let off = (mean(&loss) - number(expected)).abs();
        faults.near(&format!("{}, loss {step}", record.name), off, TRAINED_LOSS);
        let gradients = gradients(&session, &loss);
        // The record decays vectors, too: decay is a factor applied before the update.
        let kept = 1. - config.lr * config.weight_decay;
        for (_, vector) in session.params.iter().filter(|(_, one)| one.rank() < 2) {
            vector.set(&(vector.as_tensor() * kept).unwrap()).unwrap();
        }
        updates.step(&gradients, config.lr).unwrap();
    }
    faults.none();
}
