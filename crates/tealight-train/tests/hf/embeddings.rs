//! Embeddings agree with recorded results of sentence-transformers.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tealight_ops::testing::device;
use tealight_train::export::Format;
use tealight_train::export::card::Provenance;
use tealight_train::inference::embed::Embeddings;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::feature_extraction::FeatureExtraction;
use tealight_train::trained::TrainedModel;

use crate::record::{golden, json};

/// Of a number of a vector. Those that are not normalised are up to 3.
const VECTOR: f64 = 1e-5;
/// The files of a model.
const FILES: [&str; 5] = [
    "config.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
];

/// A recorded folder.
struct Case {
    label: String,
    folder: tempfile::TempDir,
    texts: Vec<String>,
    embeddings: Vec<Vec<f64>>,
    n_truncated: u64,
}

fn cases() -> Vec<Case> {
    let recorded = json(&golden().join("embeddings.json"));
    let cases = recorded.as_array().unwrap().iter().map(Case::read);
    let cases: Vec<_> = cases.collect();
    assert!(cases.len() > 9);
    cases
}

impl Case {
    fn read(recorded: &Value) -> Self {
        let text = |key: &str| recorded[key].as_str().unwrap();
        let folder = tempfile::tempdir().unwrap();
        for file in FILES {
            let from = golden().join("models").join(text("model")).join(file);
            fs::copy(from, folder.path().join(file)).unwrap();
        }
        for (name, content) in recorded["files"].as_object().unwrap() {
            write(folder.path(), name, content);
        }
        Self {
            label: format!("{}, {}", text("model"), text("name")),
            folder,
            texts: serde_json::from_value(recorded["texts"].clone()).unwrap(),
            embeddings: serde_json::from_value(recorded["embeddings"].clone()).unwrap(),
            n_truncated: recorded["n_truncated"].as_u64().unwrap(),
        }
    }

    fn check(&self, label: &str, found: &Embeddings) {
        assert_eq!(found.len(), self.texts.len(), "{label}");
        assert_eq!(found.n_truncated() as u64, self.n_truncated, "{label}");
        for ((text, expected), row) in self.texts.iter().zip(&self.embeddings).zip(found.rows()) {
            assert_eq!(row.len(), expected.len(), "{label}");
            let differences = row.iter().zip(expected).map(|(a, b)| (f64::from(*a) - b).abs());
            let off = differences.fold(0_f64, f64::max);
            assert!(off < VECTOR, "{label}, {text:?}: {off}");
        }
    }
}

fn write(folder: &Path, name: &str, content: &Value) {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content.to_string()).unwrap();
}

fn pipeline(folder: &Path) -> FeatureExtraction {
    FeatureExtraction::open(&TrainedModel::open(folder, None).unwrap(), device()).unwrap()
}

#[test]
fn vectors_are_those_of_sentence_transformers() {
    for case in cases() {
        case.check(
            &case.label,
            &pipeline(case.folder.path()).embedder().embed(&case.texts).unwrap(),
        );
    }
}

#[test]
fn an_exported_folder_embeds_as_its_source() {
    for case in cases() {
        let source = TrainedModel::open(case.folder.path(), None).unwrap();
        let expressed = Box::new(source.hugging_face().unwrap());
        for format in [Format::HuggingFace(expressed), Format::Tealight { reason: None }] {
            let to = tempfile::tempdir().unwrap();
            source.export(to.path(), &format, &Provenance::default()).unwrap();
            let label = format!("{}, {format:?}", case.label);
            case.check(&label, &pipeline(to.path()).embedder().embed(&case.texts).unwrap());
        }
    }
}

#[test]
fn a_vector_does_not_depend_on_the_other_texts() {
    for case in cases() {
        let pipeline = pipeline(case.folder.path());
        let embedder = pipeline.embedder();
        let together = embedder.embed(&case.texts).unwrap();
        for (text, row) in case.texts.iter().zip(together.rows()) {
            let alone = embedder.embed(std::slice::from_ref(text)).unwrap();
            let differences = alone.values().iter().zip(row).map(|(a, b)| (a - b).abs());
            let off = differences.fold(0_f32, f32::max);
            assert!(off < 5e-6, "{}, {text:?}: {off}", case.label);
        }
    }
}

/// Its own attention mixes the texts of a batch and padding changes it, as in `transformers`.
#[test]
fn a_nystromformer_embeds_one_text_at_a_time() {
    let pretrained = TrainedModel::open(&golden().join("models/nystrom_exact"), None).unwrap();
    let pipeline = FeatureExtraction::open(&pretrained, device()).unwrap();
    let embedder = pipeline.embedder();
    let texts = ["the rain", "a king and the sea"].map(str::to_owned);
    let together = embedder.embed(&texts).unwrap();
    for (text, row) in texts.iter().zip(together.rows()) {
        let alone = embedder.embed(std::slice::from_ref(text)).unwrap();
        assert_eq!(alone.values(), row, "{text}");
    }
}

#[test]
fn other_models_are_refused_by_their_kind() {
    for (model, kind) in [
        ("gpt2", "a causal language model"),
        ("llama", "a causal language model"),
        ("t5", "an encoder-decoder"),
    ] {
        let pretrained = TrainedModel::open(&golden().join("models").join(model), None).unwrap();
        let error = FeatureExtraction::open(&pretrained, device()).unwrap_err().to_string();
        assert!(error.contains(kind) && error.contains("needs an encoder of texts"), "{error}");
    }
}

/// What the settings of a folder with one file changed are refused with.
fn refusal(name: &str, change: impl FnOnce(&mut Value)) -> String {
    let case = cases().remove(1);
    let path = case.folder.path().join(name);
    let mut content = if path.exists() { json(&path) } else { serde_json::json!({}) };
    change(&mut content);
    write(case.folder.path(), name, &content);
    let pretrained = TrainedModel::open(case.folder.path(), None).unwrap();
    let built = FeatureExtraction::open(&pretrained, device());
    let message = built.map_or_else(|error| error.to_string(), |_| "accepted".to_owned());
    message.replace(&case.folder.path().display().to_string(), "")
}

/// [`refusal`] of a file with one key changed.
fn refusal_of(name: &str, key: &str, value: &str) -> String {
    let value: Value = serde_json::from_str(value).unwrap();
    refusal(name, |content| content[key] = value)
}

#[test]
fn what_a_pooling_asks_for_is_done_or_refused_by_its_key() {
    let name = "1_Pooling/config.json";
    assert_eq!(refusal_of(name, "include_prompt", "true"), "accepted");
    for (key, value, rule) in [
        ("pooling_mode_mean_sqrt_len_tokens", "true", "\"mean_sqrt_len_tokens\" is not supported"),
        ("pooling_mode", "\"lasttoken\"", "not supported; these are: mean, cls, max"),
        ("pooling_mode", "[\"max\", \"max\"]", "pooling \"max\" is named twice"),
        ("pooling_mode", "[]", "names no pooling"),
        ("pooling_mode_mean_tokens", "false", "names no pooling"),
        ("pooling_mode_mean_tokens", "1", "_mean_tokens` = 1 is neither true nor false"),
        ("word_embedding_dimension", "384", "` = 384, and the model has a width of 32"),
        ("include_prompt", "false", "`include_prompt` = false is not supported"),
        ("weights", "3", "its key `weights` is not known"),
    ] {
        let message = refusal_of(name, key, value);
        assert!(message.contains(name) && message.contains(rule), "{key} = {value}: {message}");
    }
}

#[test]
fn what_a_folder_asks_for_is_done_or_refused_by_its_key() {
    let (transformer, model) = ("sentence_bert_config.json", "config_sentence_transformers.json");
    let tokenizer = "tokenizer_config.json";
    assert_eq!(refusal_of(transformer, "max_seq_length", "2"), "accepted");
    for (name, key, value, rule) in [
        (transformer, "max_seq_length", "0", "`max_seq_length` = 0 is not a positive integer"),
        (transformer, "do_lower_case", "3", "`do_lower_case` = 3 is neither true nor false"),
        (transformer, "transformer_task", "\"fill-mask\"", "\"fill-mask\" is not supported"),
        (transformer, "processing_kwargs", "{\"text\":{}}", "`processing_kwargs` = {\"text\":{}}"),
        (model, "default_prompt_name", "\"q\"", "`default_prompt_name` = \"q\" is not one of"),
        (tokenizer, "truncation_side", "\"up\"", "is neither \"left\" nor \"right\""),
    ] {
        let message = refusal_of(name, key, value);
        assert!(message.contains(name) && message.contains(rule), "{key} = {value}: {message}");
    }
    let short = refusal_of(transformer, "max_seq_length", "1");
    assert!(short.contains("`max_seq_length` = 1 leaves no room for the 2 special"), "{short}");
    let many = refusal_of(model, "truncate_dim", "33");
    assert!(many.contains("`truncate_dim` = 33 is not one of 1 to 32"), "{many}");
}

#[test]
fn modules_that_are_not_supported_are_refused_by_name() {
    let module = |index: usize, key: &'static str, value: &'static str| {
        refusal("modules.json", move |content| content[index][key] = value.into())
    };
    let lstm = module(2, "type", "sentence_transformers.models.LSTM");
    assert!(
        lstm.contains("its module `sentence_transformers.models.LSTM` in `2_Normalize`"),
        "{lstm}"
    );
    let other = module(1, "type", "someone.Pooling");
    assert!(other.contains("its modules are Transformer, someone.Pooling, Normalize"), "{other}");
    let folder = module(0, "path", "0_Transformer");
    assert!(folder.contains("its model is in `0_Transformer`"), "{folder}");
    let outside = module(1, "path", "../1_Pooling");
    assert!(outside.contains("its path `../1_Pooling` leaves the folder"), "{outside}");
    let missing = module(1, "path", "3_Pooling");
    assert!(missing.contains("cannot read `/3_Pooling/config.json`"), "{missing}");
}

#[test]
fn a_pooling_without_modules_is_a_damaged_folder() {
    let case = cases().remove(1);
    fs::remove_file(case.folder.path().join("modules.json")).unwrap();
    let pretrained = TrainedModel::open(case.folder.path(), None).unwrap();
    let error = pretrained.sentence_settings().unwrap_err().to_string();
    assert!(error.contains("there is no `modules.json`"), "{error}");
}
