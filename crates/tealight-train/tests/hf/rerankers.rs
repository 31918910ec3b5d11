//! Ranked passages agree with recorded results of `CrossEncoder` of sentence-transformers.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tealight_ops::testing::device;
use tealight_train::export::Format;
use tealight_train::export::card::Provenance;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::reranking::{Ranked, Relevance, Request, Reranking};
use tealight_train::trained::TrainedModel;

use crate::record::{golden, json};

const LOGIT: f64 = 5e-5;
const FILES: [&str; 4] =
    ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"];

fn folder() -> PathBuf {
    golden().join("cross_encoder")
}

fn recorded() -> Value {
    json(&folder().join("expected.json"))
}

fn open(folder: &Path) -> Reranking {
    let model = TrainedModel::open(folder, None).unwrap();
    Reranking::open(&model, device()).unwrap()
}

fn numbers(list: &Value) -> Vec<f64> {
    serde_json::from_value(list.clone()).unwrap()
}

/// The relevance of the second text of each recorded pair for the first.
fn of_pairs(reranking: &Reranking, recorded: &Value) -> Vec<Relevance> {
    let pairs: Vec<[String; 2]> = serde_json::from_value(recorded["pairs"].clone()).unwrap();
    let request = |[query, passage]: [String; 2]| Request { query, passages: vec![passage] };
    let requests: Vec<Request> = pairs.into_iter().map(request).collect();
    let answers = reranking.answers(&requests.iter().collect::<Vec<_>>()).unwrap();
    answers.into_iter().flatten().collect()
}

fn assert_near(actual: impl Iterator<Item = f64>, expected: &Value) {
    let (actual, expected): (Vec<f64>, _) = (actual.collect(), numbers(expected));
    assert_eq!(actual.len(), expected.len());
    let differences = actual.iter().zip(&expected).map(|(a, b)| (a - b).abs());
    assert!(differences.fold(0., f64::max) < LOGIT, "{actual:?}, {expected:?}");
}

#[test]
fn scores_and_ranks_are_those_of_a_cross_encoder() {
    let (reranking, recorded) = (open(&folder()), recorded());
    let relevance = of_pairs(&reranking, &recorded);
    assert_near(relevance.iter().map(|one| one.raw), &recorded["logits"]);
    assert_near(relevance.iter().map(|one| one.score), &recorded["predict"]);
    let truncated: Vec<bool> = relevance.iter().map(|one| one.is_truncated).collect();
    assert_eq!(truncated.iter().rposition(|&is| is), Some(6), "{truncated:?}");

    let rank = &recorded["rank"];
    let query = rank["query"].as_str().unwrap().to_owned();
    let passages = serde_json::from_value(rank["documents"].clone()).unwrap();
    let relevance = reranking.answer(&Request { query, passages }).unwrap();
    let ranked = Ranked::of(&relevance, false);
    let expected = rank["output"].as_array().unwrap();
    assert_eq!(ranked.len(), expected.len());
    for (actual, expected) in ranked.iter().zip(expected) {
        assert_eq!(expected["corpus_id"], actual.index);
        let difference = (actual.score - expected["score"].as_f64().unwrap()).abs();
        assert!(difference < LOGIT, "{actual:?}, {expected}");
    }
}

/// A folder of `ms-marco` has logits as scores.
#[test]
fn the_activation_of_a_folder_is_obeyed_and_exported() {
    let recorded = recorded();
    let changed = tempfile::tempdir().unwrap();
    for file in FILES {
        fs::copy(folder().join(file), changed.path().join(file)).unwrap();
    }
    let path = changed.path().join("config.json");
    let mut config = json(&path);
    let config = config.as_object_mut().unwrap();
    config.remove("sentence_transformers");
    let key = "sbert_ce_default_activation_function";
    config.insert(key.to_owned(), "torch.nn.modules.linear.Identity".into());
    fs::write(&path, serde_json::to_string(&config).unwrap()).unwrap();
    let relevance = of_pairs(&open(changed.path()), &recorded);
    assert_near(relevance.iter().map(|one| one.score), &recorded["logits"]);

    for (from, expected) in [(changed.path(), "logits"), (&folder(), "predict")] {
        let model = TrainedModel::open(from, None).unwrap();
        let format = Format::HuggingFace(Box::new(model.hugging_face().unwrap()));
        let to = tempfile::tempdir().unwrap();
        let to = to.path().join("folder");
        model.export(&to, &format, &Provenance::default()).unwrap();
        let config = json(&to.join("config.json"));
        assert_eq!(config[key], config["sentence_transformers"]["activation_fn"]);
        let relevance = of_pairs(&open(&to), &recorded);
        assert_near(relevance.iter().map(|one| one.score), &recorded[expected]);
    }

    config.insert(key.to_owned(), "torch.nn.modules.activation.Tanh".into());
    fs::write(&path, serde_json::to_string(&config).unwrap()).unwrap();
    let message = TrainedModel::open(changed.path(), None)
        .and_then(|model| Reranking::open(&model, device()))
        .unwrap_err()
        .to_string();
    assert!(message.contains("config.json") && message.contains("Tanh"), "{message}");
}

#[test]
fn models_of_several_outputs_are_refused() {
    let model = TrainedModel::open(&golden().join("models/bert_cls"), None).unwrap();
    let message = Reranking::open(&model, device()).unwrap_err().to_string();
    assert!(message.contains("a classifier of texts with one output"), "{message}");
}

/// With a bi-encoder, the scores are cosines.
#[test]
fn an_encoder_ranks_by_the_cosine() {
    let reranking = open(&golden().join("models/bert"));
    assert!(!reranking.is_cross_encoder());
    let passages = ["the sea", "the rain is here", "a king"].map(str::to_owned).to_vec();
    let request = Request { query: "the rain is here".to_owned(), passages };
    let relevance = reranking.answer(&request).unwrap();
    let best = Ranked::of(&relevance, false)[0];
    assert!(best.index == 1 && (best.score - 1.).abs() < 1e-5, "{relevance:?}");
    assert!(relevance.iter().all(|one| one.raw.to_bits() == one.score.to_bits()));
}
