use std::f64::consts::LN_2;
use std::fs;
use std::path::Path;

use candle_core::{DType, Device};
use serde_json::json;
use tealight_model::ParamStore;
use tempfile::TempDir;

use super::*;
use crate::config::RunConfig;
use crate::settings::ConfigSource;
use crate::task::text::tests::assert_kept_apart;

const CONFIG: &str = "
seed = 17
optimizer = 'adamw'
[task]
kind = 'causal_lm'
seq_len = 7
[task.corpus]
kind = 'files'
documents = 'line'
[model]
d_model = 8
n_layers = 1
n_heads = 2
causal = true
";

/// The report of an untrained model on the lines of `held_out`.
fn report(folder: &TempDir, held_out: &str, overrides: &[String]) -> (CausalLm, Report) {
    let path = |name: &str| folder.path().join(name);
    fs::write(path("train.txt"), "The Sun, the rain; a CLOUDY day.\nRain again\n").unwrap();
    fs::write(path("held_out.txt"), held_out).unwrap();
    let files = [
        format!("task.cache='{}'", path("cache").display()),
        format!("task.corpus.paths=['{}']", path("train.txt").display()),
        format!("task.corpus.validation_paths=['{}']", path("held_out.txt").display()),
    ];
    let overrides = [&files, overrides].concat();
    let source = ConfigSource::parse(Path::new("a.toml"), CONFIG, &overrides).unwrap();
    let run: RunConfig = source.deserialize().unwrap();
    let crate::task::TaskConfig::CausalLm(config) = &run.task else { panic!("another task") };
    let task = config.build(&run.task_context(&Device::Cpu)).unwrap();
    let store = ParamStore::new(run.seed, DType::F32, &Device::Cpu);
    task.build_model(&run.model, &store.trainable()).unwrap();
    let model = task.build_model(&run.model, &store.without_gradients()).unwrap();
    let report = task.report(&model).unwrap();
    (task, report)
}

fn assert_bytes(report: &Report, n_bytes: f64) {
    let of = |name: &str| report.values[name].as_f64().unwrap();
    let bits = of("loss") * of("n_tokens") / LN_2;
    assert!((of("bits_per_byte") * n_bytes / bits - 1.).abs() < 1e-9, "{report:?}, {n_bytes}");
}

/// The bytes of the decoded tokens were counted, which lack accents, capitals and spaces of the text.
#[test]
fn bits_are_counted_for_each_byte_of_the_text_and_not_of_what_is_left_of_it() {
    let held_out = "ÀÉÎ rain,  cloudy; 晴れ day of the sun again\nthe rain\n";
    let n_bytes = held_out.len() as f64 - 2.;
    for sequences in ["padded", "packed"] {
        let folder = tempfile::tempdir().unwrap();
        let settings = [
            format!("task.sequences='{sequences}'"),
            "task.tokenizer={kind='wordpiece',vocab_size=60,lowercase=true,strip_accents=true}"
                .into(),
        ];
        assert_bytes(&report(&folder, held_out, &settings).1, n_bytes);
    }
    let folder = tempfile::tempdir().unwrap();
    let settings = ["task.sequences='stream'".into(), "task.tokenizer='byte'".into()];
    let (_, report) = report(&folder, held_out, &settings);
    // Nothing stands before the first byte; between the two lines there is a mark.
    assert_bytes(&report, n_bytes - 1.);
    assert_eq!(report.values["n_tokens"].as_f64(), Some(n_bytes));
}

#[test]
fn a_tokenizer_without_marks_is_reported_on_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let vocab: serde_json::Map<_, _> =
        (' '..='~').enumerate().map(|(id, c)| (c.to_string(), json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": { "type": "Fuse" },
        "model": { "type": "BPE", "vocab": vocab, "merges": [] },
    });
    let path = folder.path().join("tokenizer.json");
    fs::write(&path, tokenizer.to_string()).unwrap();
    let settings = [
        "task.sequences='padded'".into(),
        format!("task.tokenizer={{kind='file',path='{}'}}", path.display()),
    ];
    // Two pieces of 7 and 6 characters, and one of a single one.
    let (task, report) = report(&folder, "sun and rain.\nx\n", &settings);
    let special = task.texts.tokenizer.special();
    assert_eq!((special.begin, special.end), (None, None));
    let values = &report.values;
    assert_eq!(values["n_tokens"], 11);
    assert_bytes(&report, 14. * (1. - 3. / 14.));
    let [sample, prompt] = ["sample", "sample_prompt"].map(|name| values[name].as_str().unwrap());
    assert!(sample.len() > 1, "{report:?}");
    assert!(values["loss"].is_number() && values["unigram_loss"].as_f64() > Some(0.));

    let (shown, sample) = (report.to_string(), sample.trim_end());
    let heading = format!(
        "held-out text\n\na text that the model wrote after `{prompt}`, the beginning of that text \
         (temperature 0.8, seed 0):\n\n"
    );
    assert!(!prompt.is_empty() && shown.ends_with(&format!("{heading}{sample}\n")), "{shown}");
    assert_eq!(super::report::shown(prompt, prompt), None);
}

/// The maps of a packed sequence were those of a model that reads it as one text.
#[test]
fn attention_maps_of_packed_texts_keep_them_apart() {
    let folder = tempfile::tempdir().unwrap();
    let settings = ["task.sequences='packed'".into(), "task.tokenizer='byte'".into()];
    let (task, _) = report(&folder, "a\nb\n", &settings);
    let model_config: crate::RunConfig =
        ConfigSource::parse(Path::new("a.toml"), CONFIG, &[]).unwrap().deserialize().unwrap();
    let store = ParamStore::new(17, DType::F32, &Device::Cpu);
    let model = task.build_model(&model_config.model, &store.trainable()).unwrap();
    let segments = without_last(&task.texts.held_out(0)).segments.unwrap();
    assert_kept_apart(&task.attention_maps(&model).unwrap(), &segments);
}
