//! Functions that read untrusted input from bytes. For any bytes they must return, with or without an error:
//! they must not panic, and not allocate much more memory than the size of the input.
//!
//! `fuzz/` searches for bytes that break this. Those that it found are in `fuzz/corpus` and run as an
//! ordinary test.

use std::fs;
use std::path::Path;

use candle_core::Device;
use tealight_model::ModelConfig;
use tealight_train::RunConfig;
use tealight_train::config::ConfigSource;
use tealight_train::data::images::source::{self, SourceConfig};
use tealight_train::data::images::{Filter, Fit, Pictures, Preparation, decode};
use tealight_train::inference::decision::Decision;
use tealight_train::inference::embed::SentenceSettings;
use tealight_train::inference::labels::{Labels, Objective};
use tealight_train::observer::jsonl;
use tealight_train::pipelines::Pipeline;
use tealight_train::pipelines::fill_mask::FillMask;
use tealight_train::pipelines::image_classification::{ImageClassification, Request};
use tealight_train::pipelines::text_generation::TextGeneration;
use tealight_train::pipelines::translation::Translation;
use tealight_train::run::checkpoint::{Checkpoint, load_weights, verify};
use tealight_train::run::{Checkpoints, RunDirectory};
use tealight_train::storage::tensor_file::TensorFile;
use tealight_train::task::{TaskConfig, TaskContext, TaskKind, seq2seq};
use tealight_train::text::corpus::{Corpus, files};
use tealight_train::text::tokenizer::{Specials, Tokenizer};
use tealight_train::trained::TrainedModel;
use tealight_train::weather;

/// A function of bytes.
pub(crate) type Target = fn(&[u8]);

/// All functions, by the names of the fuzz targets.
pub(crate) const TARGETS: [(&str, Target); 14] = [
    ("config", config),
    ("checkpoint", checkpoint),
    ("run", run),
    ("folder", folder),
    ("sentence", sentence),
    ("tokenizer", tokenizer),
    ("corpus", corpus),
    ("days", days),
    ("pairs", pairs),
    ("labels", labels),
    ("torch", torch),
    ("picture", picture),
    ("tar", tar),
    ("idx", idx),
];

/// Separates the files in an input that consists of several.
const BETWEEN: &[u8] = b"\n=====\n";
/// A picture of one grey pixel.
const PNG: &[u8] = &[
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52,
    0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0x3a, 0x7e, 0x9b,
    0x55, 0x00, 0x00, 0x00, 0x0a, 0x49, 0x44, 0x41, 0x54, 0x78, 0xda, 0x63, 0x68, 0x00, 0x00, 0x00,
    0x82, 0x00, 0x81, 0xda, 0x45, 0x08, 0x3b, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae,
    0x42, 0x60, 0x82,
];
/// The most documents that are read.
const MAX_DOCUMENTS: usize = 1000;

/// A TOML file of settings.
pub(crate) fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(source) = ConfigSource::parse(Path::new("fuzz.toml"), text, &[]) else { return };
    if let Ok(config) = source.deserialize::<RunConfig>() {
        let _ = config.validate();
    }
}

/// A checkpoint: its `state.json`, digests and tensors.
pub(crate) fn checkpoint(bytes: &[u8]) {
    let names = [
        "state.json",
        "model.safetensors",
        "optimizer.safetensors",
        "ema.safetensors",
        "SHA256SUMS",
    ];
    in_folder(bytes, &names, |folder| {
        let _ = Checkpoint::load(folder, &Device::Cpu);
        let _ = load_weights(folder, &Device::Cpu);
        let _ = verify(folder);
    });
}

/// The directory of a run, without tensors.
pub(crate) fn run(bytes: &[u8]) {
    let names = [
        "manifest.json",
        "resolved.toml",
        "metrics.jsonl",
        "latest",
        "tokenizer.json",
        "labels.json",
        "pictures.json",
        "decision.json",
    ];
    in_folder(bytes, &names, |folder| {
        let _ = Labels::read(folder);
        let _ = Decision::read(folder, Path::new("step-000001"));
        let _ = jsonl::read(&folder.join("metrics.jsonl"));
        let _ = jsonl::cut_after(&folder.join("metrics.jsonl"), 3, 1);
        let _ = Checkpoints::new(folder.to_owned()).latest();
        let _ = RunDirectory::open(folder).and_then(|run| run.manifest());
        let _ = TrainedModel::open(folder, None);
    });
}

/// A model folder of Hugging Face, or one exported by Tealight.
pub(crate) fn folder(bytes: &[u8]) {
    let names = [
        "config.json",
        "model.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "tealight.json",
        "labels.json",
        "pictures.json",
        "preprocessor_config.json",
    ];
    in_folder(bytes, &names, |folder| {
        let Ok(model) = TrainedModel::open(folder, None) else { return };
        let _ = FillMask::open(&model, &Device::Cpu);
        let _ = TextGeneration::open(&model, &Device::Cpu);
        let _ = Translation::open(&model, &Device::Cpu);
        let Ok(pipeline) = ImageClassification::open(&model, &Device::Cpu) else { return };
        let _ = pipeline.picture(&Request::Bytes(PNG.to_vec()));
    });
}

/// The files of sentence-transformers beside a model of width 32.
pub(crate) fn sentence(bytes: &[u8]) {
    let names = [
        "modules.json",
        "1_Pooling/config.json",
        "sentence_bert_config.json",
        "config_sentence_transformers.json",
        "tokenizer_config.json",
        "2_Normalize/config.json",
    ];
    in_folder(bytes, &names, |folder| {
        let Ok(stated) = SentenceSettings::read(folder, 32) else { return };
        let _ = stated.prompt(Some("query"));
    });
}

/// A `tokenizer.json`, which then encodes and decodes texts.
pub(crate) fn tokenizer(bytes: &[u8]) {
    let Ok(tokenizer) = Tokenizer::from_json(bytes, Path::new("tokenizer.json")) else { return };
    for text in ["", "Monday was rainy.", "晴れのち曇り 🌧️", "\u{0}\u{7f}\n\t", "[MASK] </s>"]
    {
        let _ = tokenizer.encode(text);
        let _ = tokenizer.encode_plain(text);
    }
    let ids: Vec<u32> = (0..9).chain([u32::MAX]).collect();
    let _ = tokenizer.decode(&ids, Specials::Keep);
    let _ = tokenizer.word_starts();
}

/// A file of text or JSON lines, possibly compressed; the first byte selects the format.
pub(crate) fn corpus(bytes: &[u8]) {
    const ENDINGS: [&str; 6] = ["txt", "jsonl", "txt.gz", "jsonl.gz", "txt.zst", "jsonl.zst"];
    let Some((kind, content)) = bytes.split_first() else { return };
    let Ok(folder) = tempfile::tempdir() else { return };
    let kind = usize::from(*kind);
    let path = folder.path().join(format!("corpus.{}", ENDINGS[kind % ENDINGS.len()]));
    if fs::write(&path, content).is_err() {
        return;
    }
    let units = [files::Unit::Line, files::Unit::Paragraph, files::Unit::File];
    let documents = units[kind / ENDINGS.len() % units.len()];
    let config = files::Config { paths: vec![path], documents, ..files::Config::default() };
    let Ok(corpus) = files::Files::open(&config) else { return };
    let _ = corpus.fingerprint(&mut |_| ());
    if let Ok(documents) = corpus.documents() {
        let _ = documents.take(MAX_DOCUMENTS).count();
    }
}

/// A file of weather.
pub(crate) fn days(bytes: &[u8]) {
    in_folder(bytes, &["days.txt"], |folder| {
        let _ = weather::read(&folder.join("days.txt"), 3);
    });
}

/// A file of pairs; the first byte selects the kind of tokens.
pub(crate) fn pairs(bytes: &[u8]) {
    let Some((kind, content)) = bytes.split_first() else { return };
    let level = if kind % 2 == 0 { seq2seq::Level::Characters } else { seq2seq::Level::Words };
    in_folder(content, &["pairs.tsv"], |folder| {
        let path = folder.join("pairs.tsv");
        let file = seq2seq::FileConfig { path, level, ..seq2seq::FileConfig::default() };
        let source = seq2seq::SourceConfig::File(file);
        let config = seq2seq::Config { source, n_validation: 1, ..seq2seq::Config::default() };
        let _ = config.build(&TaskContext::new(0, 2, &ModelConfig::default(), &Device::Cpu));
    });
}

/// Texts with labels, possibly compressed; the first byte selects the format, which may be a folder of classes, the
/// objective, and whether texts come in pairs.
pub(crate) fn labels(bytes: &[u8]) {
    let Some((kind, content)) = bytes.split_first() else { return };
    let names = ["texts.csv", "texts.jsonl", "texts.tsv", "texts.json"];
    let name = names[usize::from(kind % 2 + kind / 12 % 2 * 2)];
    let is_folder = kind / 24 % 2 == 1;
    let names = if is_folder { &["a/1.txt", "b/2.txt", "b/3.txt"][..] } else { &[name] };
    let text = "[task]\nkind = \"classify\"\ntokenizer.kind = \"byte\"";
    let Ok(source) = ConfigSource::parse(Path::new("fuzz.toml"), text, &[]) else { return };
    let Ok(mut config) = source.deserialize::<RunConfig>() else { return };
    in_folder(content, names, |folder| {
        let TaskConfig::Classify(task) = &mut config.task else { return };
        task.data.path = if is_folder { folder.to_owned() } else { folder.join(name) };
        let objectives = [Objective::Classes, Objective::Labels, Objective::Regression];
        task.objective = objectives[usize::from(kind / 2 % 3)];
        task.data.text_pair = (kind / 6 % 2 == 1).then(|| "other".to_owned());
        let TaskConfig::Classify(task) = &config.task else { return };
        let _ = task.build(&config.task_context(&Device::Cpu));
    });
}

/// A file of `torch.save`.
pub(crate) fn torch(bytes: &[u8]) {
    in_one_file(bytes, "pytorch_model.bin", |path| {
        let _ = TensorFile::torch(path).and_then(TensorFile::read);
    });
}

/// What pictures become: small, so that resizing takes no time.
const PREPARATION: Preparation =
    Preparation { size: Some([7, 7]), fit: Fit::Crop, filter: Filter::Bilinear, colour: None };

/// A PNG or a JPEG.
pub(crate) fn picture(bytes: &[u8]) {
    let _ = decode(bytes);
    let _ = PREPARATION.decode(bytes);
}

/// An archive of class folders with pictures; the first byte selects the compression, and whether broken pictures are
/// left out.
pub(crate) fn tar(bytes: &[u8]) {
    const ENDINGS: [&str; 3] = ["tar", "tar.gz", "tar.zst"];
    let Some((kind, content)) = bytes.split_first() else { return };
    let kind = usize::from(*kind);
    let name = format!("pictures.{}", ENDINGS[kind % ENDINGS.len()]);
    in_one_file(content, &name, |path| {
        open_pictures(&SourceConfig::Archive(source::files::Config {
            path: path.to_owned(),
            skip_broken: kind / ENDINGS.len() % 2 == 1,
            ..source::files::Config::default()
        }));
    });
}

/// Files of the form of MNIST: pictures and their labels.
pub(crate) fn idx(bytes: &[u8]) {
    in_folder(bytes, &["images", "labels"], |folder| {
        open_pictures(&SourceConfig::Idx(source::idx::Config {
            images: folder.join("images"),
            labels: folder.join("labels"),
            ..source::idx::Config::default()
        }));
    });
}

/// Decodes all pictures of a source into a cache.
fn open_pictures(source: &SourceConfig) {
    let Ok(cache) = tempfile::tempdir() else { return };
    let path = || Ok(cache.path().to_owned());
    let _ = Pictures::open(source, None, PREPARATION, 3, path, &mut |_, _| ());
}

/// Writes the input to a file of this name.
fn in_one_file(bytes: &[u8], name: &str, look: impl FnOnce(&Path)) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let path = folder.path().join(name);
    if fs::write(&path, bytes).is_ok() {
        look(&path);
    }
}

/// Writes the parts of the input to the named files of a folder; there may be fewer parts than names.
fn in_folder(bytes: &[u8], names: &[&str], look: impl FnOnce(&Path)) {
    let Ok(folder) = tempfile::tempdir() else { return };
    let mut rest = Some(bytes);
    for name in names {
        let Some(bytes) = rest else { break };
        let end = bytes.windows(BETWEEN.len()).position(|window| window == BETWEEN);
        let content = &bytes[..end.unwrap_or(bytes.len())];
        let path = folder.path().join(name);
        let parent = path.parent().unwrap_or(folder.path());
        let write = || fs::create_dir_all(parent).and_then(|()| fs::write(&path, content));
        // An empty part writes no file.
        if !content.is_empty() && write().is_err() {
            return;
        }
        rest = end.map(|end| &bytes[end + BETWEEN.len()..]);
    }
    look(folder.path());
}
