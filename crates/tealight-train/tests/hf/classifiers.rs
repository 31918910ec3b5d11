//! Classified texts agree with the `text-classification` pipeline of `transformers`, and classifiers become others.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::{Map, Value, json};
use tealight_model::hf::Family;
use tealight_ops::testing::device;
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::export::Format;
use tealight_train::export::card::Provenance;
use tealight_train::inference::labels::{Classified, Objective};
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::text_classification::TextClassification;
use tealight_train::task::classify::Text;
use tealight_train::task::{TaskConfig, TaskKind};
use tealight_train::trained::TrainedModel;
use tealight_train::{Result, Session};

use crate::record::{Record, difference, records};

/// Tolerance of scores. Neighbours are at least 2·10⁻⁴ apart.
const SCORE: f64 = 1e-5;

/// The folders of classifiers.
fn classifiers() -> Vec<Record> {
    let is_one = |record: &Record| record.expected.get("text_classification").is_some();
    let folders: Vec<_> = records().into_iter().filter(is_one).collect();
    for family in [Family::Bert, Family::Roberta, Family::DistilBert, Family::Nystromformer] {
        let class = family.classifier_architecture().unwrap();
        assert!(folders.iter().any(|one| one.expected["architecture"] == class), "{class}");
    }
    folders
}

/// A copy of the folder with another `config.json`.
fn changed(record: &Record, change: impl FnOnce(&mut Value)) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(&record.folder).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), directory.path().join(entry.file_name())).unwrap();
    }
    let path = directory.path().join("config.json");
    let mut config = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(path, config.to_string()).unwrap();
    directory
}

/// The text or the pair of a recorded input.
fn text(input: &Value) -> Text {
    let of = |value: &Value| value.as_str().unwrap().to_owned();
    match input {
        Value::Array(pair) => Text { text: of(&pair[0]), text_pair: Some(of(&pair[1])) },
        text => Text { text: of(text), text_pair: None },
    }
}

fn classified(folder: &Path, texts: &[Text]) -> Vec<Classified> {
    let pretrained = TrainedModel::open(folder, None).unwrap();
    let pipeline = TextClassification::open(&pretrained, device()).unwrap();
    pipeline.answer(&texts.to_vec()).unwrap()
}

/// All recorded texts at once, and each alone.
fn check(label: &str, folder: &Path, setting: &Value) {
    let results = setting["results"].as_array().unwrap();
    let texts: Vec<Text> = results.iter().map(|result| text(&result["input"])).collect();
    let together = classified(folder, &texts);
    assert_eq!(together.len(), texts.len());
    for (result, (text, together)) in results.iter().zip(texts.into_iter().zip(together)) {
        let alone = classified(folder, &[text]).remove(0);
        let expected = result["output"].as_array().unwrap();
        let label = format!("{label}, {}", result["input"]);
        for actual in [&together, &alone] {
            assert_eq!(expected.len(), actual.scores.len(), "{label}");
            for (expected, actual) in expected.iter().zip(&actual.scores) {
                assert_eq!(expected["label"], *actual.label, "{label}");
                let off = (expected["score"].as_f64().unwrap() - actual.score).abs();
                assert!(off < SCORE, "{label}: {expected} is not {actual:?}");
            }
        }
    }
}

#[test]
fn texts_are_classified_as_the_pipeline_classifies_them() {
    let mut n_undecided = 0;
    for record in classifiers() {
        for (name, setting) in record.expected["text_classification"].as_object().unwrap() {
            let label = format!("{}, {name}", record.name);
            if name == "no_problem_type" {
                let folder = changed(&record, |config| config["problem_type"] = Value::Null);
                check(&label, folder.path(), setting);
                n_undecided += 1;
            } else {
                check(&label, &record.folder, setting);
            }
        }
    }
    assert!(n_undecided > 0);
}

#[test]
fn without_an_architecture_the_tensors_decide() {
    for record in classifiers() {
        for architectures in [Value::Null, json!([]), json!(["BertModel"])] {
            let folder = changed(&record, |config| config["architectures"] = architectures);
            let [before, after] = [&record.folder, &folder.path().to_owned()]
                .map(|folder| TrainedModel::open(folder, None).unwrap());
            assert_eq!(before.spec, after.spec, "{}", record.name);
            assert_eq!(before.config, after.config, "{}", record.name);
        }
    }
}

#[test]
fn without_a_model_type_the_architecture_tells_it() {
    for record in classifiers() {
        let folder = changed(&record, |config| {
            config.as_object_mut().unwrap().remove("model_type");
        });
        let [before, after] = [&record.folder, &folder.path().to_owned()]
            .map(|folder| TrainedModel::open(folder, None).unwrap());
        assert_eq!(before.spec, after.spec, "{}", record.name);
        assert!(after.notes.iter().any(|note| note.contains("by `architectures`")));
    }
}

/// A classifier of BERT's family, and the number of its outputs.
fn bert() -> (Record, usize) {
    let record = classifiers().into_iter().find(|one| one.name.starts_with("bert_")).unwrap();
    let config = fs::read_to_string(record.folder.join("config.json")).unwrap();
    let config: Value = serde_json::from_str(&config).unwrap();
    let n = config["id2label"].as_object().unwrap().len();
    (record, n)
}

#[test]
fn labels_are_as_many_as_the_weights_have_rows() {
    let (record, n) = bert();
    assert!(n > 1);
    let open = |change: &dyn Fn(&mut Value)| {
        let folder = changed(&record, |config| change(config));
        let opened = TrainedModel::open(folder.path(), None);
        opened.map(|model| (model.notes, model.hf.unwrap().classification.unwrap().labels))
    };
    let unnamed: Vec<_> = (0..n).map(|id| format!("LABEL_{id}")).collect();
    // What transformers leaves in a configuration whose labels nobody named.
    for names in [Value::Null, json!({ "0": "LABEL_0" }), made_up(n + 3)] {
        for number in [Value::Null, json!(n), json!(n + 1)] {
            let labels = open(&|config| {
                config["id2label"] = names.clone();
                config["num_labels"] = number.clone();
            });
            assert_eq!(labels.unwrap().1, unnamed, "{names} {number}");
        }
    }
    let (notes, labels) = open(&|config| config["id2label"] = json!({ "0": "toxic" })).unwrap();
    assert_eq!(labels[..2], ["toxic", "LABEL_1"]);
    assert!(notes.iter().any(|note| note.contains("has 1 labels, but the weights have")));
}

/// The names that transformers makes up for `n` labels.
fn made_up(n: usize) -> Value {
    (0..n).map(|id| (id.to_string(), json!(format!("LABEL_{id}")))).collect::<Map<_, _>>().into()
}

#[test]
fn names_of_labels_are_complete_and_have_an_output() {
    let (record, n) = bert();
    let error = |change: &dyn Fn(&mut Value)| {
        let folder = changed(&record, |config| change(config));
        TrainedModel::open(folder.path(), None).unwrap_err().to_string()
    };
    let missing = error(&|config| config["id2label"] = json!({ "0": "a", "2": "b" }));
    assert!(missing.contains("config.json`") && missing.contains("\"1\" has none"), "{missing}");
    let kind = error(&|config| config["problem_type"] = json!("ranking"));
    assert!(kind.contains("`problem_type` = \"ranking\" is unknown, expected one of"), "{kind}");
    let many = error(&|config| config["id2label"][n.to_string()] = json!("one more"));
    assert!(many.contains("model.safetensors`") && many.contains("classifier.weight"), "{many}");
}

/// A run of the task on texts with these labels, initialised from the folder.
fn fine_tuned(
    model: &TrainedModel,
    lines: &[Value],
    settings: &str,
) -> Result<(RunConfig, Session<tealight_train::task::classify::Classify>)> {
    let directory = tempfile::tempdir().unwrap();
    let data = directory.path().join("texts.jsonl");
    let lines = lines.iter().map(|line| format!("{line}\n")).collect::<Vec<_>>().concat();
    fs::write(&data, lines.repeat(5)).unwrap();
    let text = format!(
        "[task]\nkind = \"classify\"\nseq_len = 16\n{settings}\n[task.data]\npath = '{}'\nvalidation = 0.4\n\
         [training]\nsteps = 1\nbatch_size = 2\n[optimizer]\nkind = \"adamw\"\n",
        data.display()
    );
    let source = ConfigSource::parse(Path::new("classify.toml"), &text, &[])?;
    let config: RunConfig = model.fill_in(source)?.deserialize()?;
    let TaskConfig::Classify(task) = &config.task else { panic!("{:?}", config.task) };
    let task = task.build(&config.task_context(device()))?;
    let mut session = Session::new(&config, task, device())?;
    session.begin_with(model)?;
    Ok((config, session))
}

fn lines(label: impl Fn(usize) -> Value) -> Vec<Value> {
    let texts = ["the rain", "the sun", "the king", "a river", "the sea", "the sand", "the wind"];
    (0..).zip(texts).map(|(n, text)| json!({ "text": text, "label": label(n) })).collect()
}

#[test]
fn a_classifier_is_trained_further_with_its_own_labels() {
    for record in classifiers() {
        let model = TrainedModel::open(&record.folder, None).unwrap();
        let outputs = model.hf.as_ref().unwrap().classification.clone().unwrap();
        let name = |n: usize| outputs.labels[n % outputs.labels.len()].clone();
        let objective = match record.name.as_str() {
            "bert_regression" => Objective::Regression,
            "bert_multilabel" => Objective::Labels,
            _ => Objective::Classes,
        };
        let label = |n: usize| match objective {
            Objective::Classes => json!(name(n)),
            Objective::Labels => json!([name(n), name(n + 1)]),
            Objective::Regression => json!(n),
        };
        let (config, session) = fine_tuned(&model, &lines(label), "").unwrap();
        let TaskConfig::Classify(task) = &config.task else { panic!("{:?}", config.task) };
        assert_eq!(task.objective, objective, "{}", record.name);
        assert_eq!(task.labels.as_ref(), Some(&outputs.labels), "{}", record.name);
        assert_eq!(config.model.classifier, model.config.classifier, "{}", record.name);
        let params = session.params.tensors();
        assert!(params.keys().eq(model.weights.keys()), "{}", record.name);
        for (name, tensor) in &params {
            assert_eq!(difference(tensor, &model.weights[name]), 0., "{}, {name}", record.name);
        }
    }
}

#[test]
fn a_classifier_whose_problem_is_undecided_learns_numbers_if_it_has_one_output() {
    let record = classifiers().into_iter().find(|one| one.name == "bert_regression").unwrap();
    let folder = changed(&record, |config| config["problem_type"] = Value::Null);
    let model = TrainedModel::open(folder.path(), None).unwrap();
    let (config, _) = fine_tuned(&model, &lines(|n| json!(n)), "").unwrap();
    let TaskConfig::Classify(task) = &config.task else { panic!("{:?}", config.task) };
    assert_eq!(task.objective, Objective::Regression);
}

#[test]
fn an_encoder_gets_the_head_of_its_family_unless_the_settings_name_another() {
    let mut families = BTreeSet::new();
    for record in records().into_iter().filter(|one| one.folder.join("vocab.txt").is_file()) {
        let model = TrainedModel::open(&record.folder, None).unwrap();
        let family = model.hf.as_ref().unwrap().family;
        if model.hf.as_ref().unwrap().classification.is_some() {
            continue;
        }
        let Some(usual) = family.classifier_head(&model.config) else { continue };
        let label = |n: usize| json!(["a", "b"][n % 2]);
        // An attention of one length may be longer than `task.seq_len`.
        let Ok((config, _)) = fine_tuned(&model, &lines(label), "") else { continue };
        assert_eq!(config.model.classifier, Some(usual), "{}", record.name);
        let linear = "[model]\nclassifier = \"linear\"";
        let (_, session) = fine_tuned(&model, &lines(label), linear).unwrap();
        let new =
            session.params.tensors().into_keys().filter(|name| name.starts_with("classifier"));
        assert_eq!(new.collect::<Vec<_>>(), ["classifier.bias", "classifier.weight"]);
        families.insert(family.model_type());
    }
    assert!(families.contains("bert") && families.contains("distilbert"), "{families:?}");
}

#[test]
fn a_classifier_is_exported_with_its_labels_and_read_back() {
    for record in classifiers() {
        let model = TrainedModel::open(&record.folder, None).unwrap();
        let expressed = model.hugging_face().unwrap();
        assert_eq!(expressed.config["architectures"][0], record.expected["architecture"]);
        let result = &record.expected["text_classification"].as_object().unwrap().values().next();
        let input = text(&result.unwrap()["results"][0]["input"]);
        let expected = classified(&record.folder, std::slice::from_ref(&input));
        for format in [Format::HuggingFace(Box::new(expressed)), Format::Tealight { reason: None }]
        {
            let directory = tempfile::tempdir().unwrap();
            model.export(directory.path(), &format, &Provenance::default()).unwrap();
            let back = TrainedModel::open(directory.path(), None).unwrap();
            assert_eq!((&back.spec, &back.config), (&model.spec, &model.config));
            let actual = classified(directory.path(), std::slice::from_ref(&input));
            assert_eq!(actual, expected, "{}", record.name);
        }
    }
}
