//! Folders of an encoder without a language-model head, as sentence-transformers saves `BertModel`.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use candle_core::Tensor;
use serde_json::{Value, json};
use tealight_model::ModelSpec;
use tealight_model::hf::{self, Family};
use tealight_ops::testing::device;
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::export::Format;
use tealight_train::export::card::Provenance;
use tealight_train::inference::attention_map::AttentionMap;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::attention_maps::AttentionMaps;
use tealight_train::pipelines::fill_mask::FillMask;
use tealight_train::storage::tensor_file::TensorFile;
use tealight_train::storage::tensors::to_bytes;
use tealight_train::task::classify::Classify;
use tealight_train::task::{TaskConfig, TaskKind};
use tealight_train::trained::TrainedModel;
use tealight_train::{Result, Session};

use crate::record::{Record, difference, records};

/// How a file names the encoder's tensors.
#[derive(Clone, Copy, Debug)]
enum Names {
    /// `bert.encoder.…`, as a model with a head does.
    Prefixed,
    /// `encoder.…`, as `BertModel` does.
    Bare,
}

/// The folders of masked language models that have a tokenizer, with the prefix of their encoder.
fn masked_lms() -> Vec<(Record, &'static str)> {
    let masked_lm = |record: Record| {
        let config = fs::read_to_string(record.folder.join("config.json")).unwrap();
        let described = hf::describe(&config).unwrap();
        let family = described.family;
        let has_tokenizer = record.folder.join("tokenizer.json").exists();
        let is_one = matches!(described.spec, ModelSpec::MaskedLm(_)) && has_tokenizer;
        let prefix = if family == Family::ModernBert { "model" } else { family.model_type() };
        is_one.then_some((record, prefix))
    };
    let folders: Vec<_> = records().into_iter().filter_map(masked_lm).collect();
    let prefixes = ["bert", "distilbert", "model", "nystromformer", "roberta"];
    assert!(prefixes.iter().all(|one| folders.iter().any(|(_, prefix)| prefix == one)));
    folders
}

fn tensors(folder: &Path) -> BTreeMap<String, Tensor> {
    let path = folder.join("model.safetensors");
    let file = if path.exists() {
        TensorFile::safetensors(&path)
    } else {
        TensorFile::torch(&folder.join("pytorch_model.bin"))
    };
    file.and_then(TensorFile::read).unwrap()
}

/// Writes a copy of the folder without its language-model head.
fn write_encoder(record: &Record, prefix: &str, names: Names, to: &Path) {
    let mut encoder = BTreeMap::new();
    for (name, tensor) in tensors(&record.folder) {
        let Some(bare) = name.strip_prefix(&format!("{prefix}.")) else { continue };
        let name = match names {
            Names::Prefixed => name.clone(),
            Names::Bare => bare.to_owned(),
        };
        encoder.insert(name, tensor);
    }
    let model = to.join("model.safetensors");
    fs::write(&model, to_bytes(&model, &encoder).unwrap()).unwrap();
    let config = fs::read_to_string(record.folder.join("config.json")).unwrap();
    let mut config: Value = serde_json::from_str(&config).unwrap();
    let with_head = config["architectures"][0].as_str().unwrap();
    config["architectures"] = json!([with_head.replace("ForMaskedLM", "Model")]);
    fs::write(to.join("config.json"), config.to_string()).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"] {
        fs::copy(record.folder.join(name), to.join(name)).unwrap();
    }
}

/// Each folder with its model, and both ways of writing its encoder alone.
fn for_each_encoder(check: impl Fn(&str, &TrainedModel, &TrainedModel)) {
    for (record, prefix) in masked_lms() {
        let whole = TrainedModel::open(&record.folder, None).unwrap();
        for names in [Names::Prefixed, Names::Bare] {
            let directory = tempfile::tempdir().unwrap();
            write_encoder(&record, prefix, names, directory.path());
            let encoder = TrainedModel::open(directory.path(), None).unwrap();
            check(&format!("{}, {names:?}", record.name), &whole, &encoder);
        }
    }
}

/// A text with as many tokens as the attention of the model requires.
fn text(model: &TrainedModel) -> String {
    let Some(n_tokens) = model.config.required_len() else { return "the rain is here".into() };
    let mut texts = (1..n_tokens).map(|n| vec!["a"; n].join(" "));
    let n = |text: &String| model.tokenizer().unwrap().encode(text).unwrap().ids.len();
    texts.find(|text| n(text) == n_tokens).expect("a text of this length")
}

#[test]
fn attention_maps_need_no_head() {
    for_each_encoder(|label, whole, encoder| {
        let text = &text(whole);
        let [expected, actual] = [whole, encoder]
            .map(|model| AttentionMaps::open(model, device()).unwrap().answer(text).unwrap().maps);
        assert_eq!(expected.len(), actual.len(), "{label}");
        for (expected, actual) in expected.iter().zip(&actual) {
            let AttentionMap { name, queries, keys, maps } = expected;
            assert_eq!((name, queries, keys), (&actual.name, &actual.queries, &actual.keys));
            assert_eq!(difference(&maps.weights, &actual.maps.weights), 0., "{label}, {name}");
        }
    });
}

/// The session of a classifier whose configuration names nothing but its data and `model`.
fn classifier(model: &TrainedModel, folder: &Path) -> Result<Session<Classify>> {
    let data = folder.join("texts.jsonl");
    // Enough texts for both labels on both sides of the split.
    let line =
        |(n, text): (usize, &str)| format!("{{\"text\": \"{text}\", \"label\": {}}}\n", n % 2);
    let texts =
        "rain|sun|king|river|sea|sand|wind|shop|the rain|the sun|the king|a river".split('|');
    fs::write(&data, texts.enumerate().map(line).collect::<Vec<_>>().concat()).unwrap();
    let text = format!(
        "[task]\nkind = \"classify\"\nseq_len = 8\n[task.data]\npath = '{}'\nvalidation = 0.2\n\
         [training]\nsteps = 1\nbatch_size = 2\n[optimizer]\nkind = \"adamw\"\n",
        data.display()
    );
    let source = ConfigSource::parse(Path::new("classify.toml"), &text, &[])?;
    let config: RunConfig = model.fill_in(source)?.deserialize()?;
    let TaskConfig::Classify(task) = &config.task else { panic!("{:?}", config.task) };
    let task = task.build(&config.task_context(device()))?;
    let mut session = Session::new(&config, task, device())?;
    let report = session.begin_with(model)?;
    assert!(report.unused.iter().all(|name| !name.starts_with("layer.")), "{report}");
    Ok(session)
}

#[test]
fn a_classifier_begins_with_an_encoder_without_a_head() {
    for_each_encoder(|label, whole, encoder| {
        let directory = tempfile::tempdir().unwrap();
        let started = |model: &TrainedModel| {
            classifier(model, directory.path()).map_err(|error| error.to_string())
        };
        let (expected, actual) = match (started(whole), started(encoder)) {
            (Ok(expected), Ok(actual)) => (expected, actual),
            (expected, actual) => {
                assert_eq!(expected.err(), actual.err(), "{label}");
                return;
            }
        };
        let (expected, actual) = (expected.params.tensors(), actual.params.tensors());
        assert!(expected.keys().eq(actual.keys()), "{label}");
        let mut n_loaded = 0;
        for (name, tensor) in &actual {
            if let Some(weight) = encoder.weights.get(name) {
                assert_eq!(difference(weight, tensor), 0., "{label}, {name}");
                n_loaded += 1;
            }
            assert_eq!(difference(&expected[name], tensor), 0., "{label}, {name}");
        }
        assert_eq!(n_loaded, encoder.weights.len(), "{label}");
    });
}

#[test]
fn filling_masks_names_the_missing_head() {
    for_each_encoder(|label, whole, encoder| {
        FillMask::open(whole, device()).unwrap();
        let error = FillMask::open(encoder, device()).unwrap_err().to_string();
        assert!(error.contains("without a language-model head"), "{label}: {error}");
        let (_, missing) = error.split_once("there is no tensor ").unwrap();
        let missing: Vec<_> = missing.split(", ").map(|name| name.trim_matches('`')).collect();
        let tensors = tensors(&whole.origin);
        assert!(missing.iter().all(|&name| tensors.contains_key(name)), "{label}: {error}");
        // A linear map, a norm and the bias of the output; ModernBERT's map and norm have no bias.
        assert!(missing.len() >= 3, "{label}: {error}");
    });
}

#[test]
fn half_a_head_is_a_damaged_folder() {
    let (record, prefix) = masked_lms().remove(0);
    let directory = tempfile::tempdir().unwrap();
    write_encoder(&record, prefix, Names::Prefixed, directory.path());
    let mut damaged = tensors(&record.folder);
    damaged.remove("cls.predictions.bias").unwrap();
    let model = directory.path().join("model.safetensors");
    fs::write(&model, to_bytes(&model, &damaged).unwrap()).unwrap();
    let error = TrainedModel::open(directory.path(), None).unwrap_err().to_string();
    assert!(error.contains("no tensor `cls.predictions.bias`"), "{error}");
}

#[test]
fn an_encoder_is_exported_as_one_and_read_back() {
    for_each_encoder(|label, whole, encoder| {
        let expressed = encoder.hugging_face().unwrap();
        let architecture = whole.hugging_face().unwrap().config["architectures"][0].clone();
        let expected = architecture.as_str().unwrap().replace("ForMaskedLM", "Model");
        assert_eq!(expressed.config["architectures"], json!([expected]), "{label}");
        let formats = [Format::HuggingFace(Box::new(expressed)), Format::Tealight { reason: None }];
        for format in formats {
            let directory = tempfile::tempdir().unwrap();
            encoder.export(directory.path(), &format, &Provenance::default()).unwrap();
            let back = TrainedModel::open(directory.path(), None).unwrap();
            assert_eq!((&back.spec, &back.config), (&encoder.spec, &encoder.config));
            assert!(back.weights.keys().eq(encoder.weights.keys()), "{label}");
        }
    });
}

/// `bert-base-uncased` has a pooler, which `BertForMaskedLM` does not use and a classifier does.
#[test]
fn a_classifier_begins_with_the_pooler_of_a_file_that_has_one() {
    let (record, prefix) = masked_lms().remove(0);
    assert_eq!(prefix, "bert");
    let directory = tempfile::tempdir().unwrap();
    write_encoder(&record, prefix, Names::Prefixed, directory.path());
    let mut with_pooler = tensors(&record.folder);
    let d_model = TrainedModel::open(&record.folder, None).unwrap().config.d_model;
    let weight = Tensor::arange(0_f32, (d_model * d_model) as f32, device()).unwrap();
    let weight = weight.reshape((d_model, d_model)).unwrap();
    let bias = Tensor::arange(0_f32, d_model as f32, device()).unwrap();
    with_pooler.insert("bert.pooler.dense.weight".to_owned(), weight.clone());
    with_pooler.insert("bert.pooler.dense.bias".to_owned(), bias.clone());
    let model = directory.path().join("model.safetensors");
    fs::write(&model, to_bytes(&model, &with_pooler).unwrap()).unwrap();
    let pretrained = TrainedModel::open(directory.path(), None).unwrap();
    assert!(pretrained.weights.keys().all(|name| !name.starts_with("classifier")));
    let texts = tempfile::tempdir().unwrap();
    let params = classifier(&pretrained, texts.path()).unwrap().params.tensors();
    assert_eq!(difference(&params["classifier.dense.weight"], &weight), 0.);
    assert_eq!(difference(&params["classifier.dense.bias"], &bias), 0.);
}
