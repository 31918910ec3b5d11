use std::fs;
use std::path::Path;

use candle_core::{DType, Device};
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::config::RunConfig;
use crate::settings::ConfigSource;
use crate::task::TaskConfig;
use crate::task::metrics::scalar;
use crate::task::text::tests::assert_kept_apart;

const CONFIG: &str = "
seed = 17
optimizer = 'adamw'
training.batch_size = 1
[task]
kind = 'masked_lm'
seq_len = 9
[task.corpus]
kind = 'files'
documents = 'line'
[model]
d_model = 8
n_layers = 1
n_heads = 2
";

/// A tokenizer whose only word is `sun`.
fn sun(folder: &TempDir) -> String {
    let special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"];
    let added: Vec<_> = (0..)
        .zip(special)
        .map(|(id, content): (usize, _)| {
            json!({
                "id": id, "content": content, "special": true, "normalized": false,
                "single_word": false, "lstrip": false, "rstrip": false,
            })
        })
        .collect();
    let vocab: serde_json::Map<_, _> = (0..)
        .zip(special.into_iter().chain(["sun"]))
        .map(|(id, t): (usize, _)| (t.into(), json!(id)))
        .collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": added, "normalizer": null, "post_processor": null,
        "pre_tokenizer": { "type": "Whitespace" }, "decoder": null,
        "model": {
            "type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": vocab,
        },
    });
    let path = folder.path().join("tokenizer.json");
    fs::write(&path, tokenizer.to_string()).unwrap();
    path.display().to_string()
}

fn task(train: &str, held_out: &str) -> Result<(MaskedLm, RunConfig)> {
    task_with(train, held_out, &[])
}

fn task_with(train: &str, held_out: &str, settings: &[String]) -> Result<(MaskedLm, RunConfig)> {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::write(path("train.txt"), train).unwrap();
    fs::write(path("held_out.txt"), held_out).unwrap();
    let overrides = [
        format!("task.cache='{}'", path("cache").display()),
        format!("task.corpus.paths=['{}']", path("train.txt").display()),
        format!("task.corpus.validation_paths=['{}']", path("held_out.txt").display()),
        format!("task.tokenizer={{kind='file',path='{}'}}", sun(&folder)),
    ];
    let overrides = [&overrides, settings].concat();
    let source = ConfigSource::parse(Path::new("a.toml"), CONFIG, &overrides).unwrap();
    let run: RunConfig = source.deserialize().unwrap();
    let TaskConfig::MaskedLm(config) = &run.task else { panic!("another task") };
    Ok((config.build(&run.task_context(&Device::Cpu))?, run))
}

#[test]
fn text_without_a_token_to_mask_is_refused_before_training() {
    for (train, held_out, side) in
        [("rain\n", "sun\n", "to train on"), ("sun\n", "rain\n", "that is held out")]
    {
        let Err(Error::Config(fault)) = task(train, held_out) else { panic!("nothing to mask") };
        assert_eq!(fault.keys[0], "task.tokenizer");
        let start = format!("no token of the text {side} can be masked: `task.tokenizer` makes");
        assert!(fault.message.starts_with(&start), "{fault:?}");
    }
}

/// The mean over no label was NaN, and the run ended with advice on the learning rate.
#[test]
fn a_batch_of_unknown_words_is_a_batch_of_no_weight() {
    let (task, run) = task("rain rain\nsun rain\nsnow\n", "rain\nsun\n").unwrap();
    let store = ParamStore::new(run.seed, DType::F32, &Device::Cpu);
    let model = task.build_model(&run.model, &store.trainable()).unwrap();
    let of = |index| {
        let batch = task.batch(Split::Train, index).unwrap();
        task.loss(&model, &batch, Mode::Eval).unwrap()
    };
    let mut counts: Vec<f64> = (0..3).map(|index| of(index).count).collect();
    counts.sort_by(f64::total_cmp);
    assert_eq!(counts, [0., 0., 1.]);
    assert!((0..3).all(|index| scalar(&of(index).sum).unwrap().is_finite()));
    let report =
        task.report(&task.build_model(&run.model, &store.without_gradients()).unwrap()).unwrap();
    let values = report.values;
    assert_eq!((values["n_masked"].as_u64(), values["loss"].is_number()), (Some(1), true));
}

/// The maps of a packed sequence were those of a model that reads it as one text.
#[test]
fn attention_maps_of_packed_texts_keep_them_apart() {
    let settings = ["task.sequences='packed'".to_owned()];
    let (task, run) = task_with("sun sun\n", "sun\nsun sun\n", &settings).unwrap();
    let store = ParamStore::new(run.seed, DType::F32, &Device::Cpu);
    let model = task.build_model(&run.model, &store.trainable()).unwrap();
    let segments = task.texts.held_out(0).segments.unwrap();
    assert_kept_apart(&task.attention_maps(&model).unwrap(), &segments);
}
