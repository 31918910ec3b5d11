//! Folders read, written and read again; and folders with errors.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use candle_core::{DType, Tensor};
use serde_json::{Value, json};
use tealight_model::hf::{self, Description, Expressed};
use tealight_ops::testing::device;
use tealight_train::storage::tensors::to_bytes;
use tealight_train::trained::folder::{self, HfFolder};

use crate::model::models;
use crate::record::{Record, difference, records};

/// Exports a folder for `transformers`.
fn export(opened: &HfFolder, to: &Path) -> Expressed {
    let Description { config, spec, ids, classification, .. } = &opened.description;
    let expressed = hf::express(config, spec, ids, classification.as_ref()).unwrap();
    fs::create_dir_all(to).unwrap();
    for (name, bytes) in folder::files(&expressed, &opened.weights, None).unwrap() {
        fs::write(to.join(name), bytes).unwrap();
    }
    expressed
}

#[test]
fn a_folder_that_is_read_written_and_read_is_the_same() {
    for (record, model) in models() {
        let directory = tempfile::tempdir().unwrap();
        let first = HfFolder::open(&record.folder).unwrap();
        let expressed = export(&first, directory.path());
        assert_eq!(expressed.family, model.description.family, "{}", record.name);
        let second = HfFolder::open(directory.path()).unwrap();
        let (before, after) = (&first.description, &second.description);
        assert_eq!(before.config, after.config, "{}", record.name);
        assert_eq!((before.spec, before.ids), (after.spec, after.ids), "{}", record.name);
        assert_eq!(before.classification, after.classification, "{}", record.name);
        let names = |folder: &HfFolder| folder.weights.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&first), names(&second), "{}", record.name);
        for (name, tensor) in &first.weights {
            assert_eq!(difference(tensor, &second.weights[name]), 0., "{}, {name}", record.name);
        }
    }
}

/// Only folders of current versions: legacy names, types and tensors are not written.
#[test]
fn what_is_written_is_what_transformers_writes() {
    let is_whole = |record: &Record| record.folder.join("model.safetensors").exists();
    let of_today = |record: &Record| is_of_today(record) && is_whole(record);
    for (record, model) in models().into_iter().filter(|(record, _)| of_today(record)) {
        let path = record.folder.join("model.safetensors");
        let theirs = candle_core::safetensors::load(path, device()).unwrap();
        let theirs: BTreeMap<_, _> = theirs.into_iter().collect();
        let ours = model.theirs(&model.store.tensors());
        assert_eq!(ours.keys().collect::<Vec<_>>(), theirs.keys().collect::<Vec<_>>());
        for (name, tensor) in &ours {
            assert_eq!(difference(tensor, &theirs[name]), 0., "{}, {name}", record.name);
        }
        let config = config(&record, "config.json").unwrap();
        let before = config_of_version_4(&record).unwrap_or_default();
        for (key, value) in model.expressed().config {
            // If both are equal, the class computes softmax attention, so their value does not matter.
            let is_softmax = config.get("num_landmarks") == config.get("segment_means_seq_len");
            let is_of_landmarks = ["num_landmarks", "segment_means_seq_len"].contains(&&*key);
            if !(is_softmax && is_of_landmarks) {
                let is_there = value == config[&key] || value == before[&key];
                assert!(is_there, "{}, {key}: {value} is not {}", record.name, config[&key]);
            }
        }
    }
}

fn config(record: &Record, name: &str) -> Option<Value> {
    let text = fs::read_to_string(record.folder.join(name)).ok()?;
    Some(serde_json::from_str(&text).unwrap())
}

/// The same configuration in the spelling of version 4 of transformers, where it has another one.
fn config_of_version_4(record: &Record) -> Option<Value> {
    config(record, "config_v4.json")
}

#[test]
fn both_spellings_of_a_configuration_give_the_same_model() {
    let mut n_compared = 0;
    for (record, model) in models() {
        let Some(before) = config_of_version_4(&record) else { continue };
        let before = hf::describe(&before.to_string()).unwrap();
        assert_eq!(before, model.description, "{}", record.name);
        assert_eq!(before.notes, Vec::<String>::new(), "{}", record.name);
        n_compared += 1;
    }
    assert!(n_compared > 0);
}

/// Old files of Llama hold the frequencies of the rotary positions, and a backbone alone omits its prefix.
#[test]
fn a_decoder_s_old_tensors_are_ignored_and_a_missing_prefix_is_added() {
    let decoders = ["llama", "ministral", "mistral", "olmo_hybrid", "qwen3"];
    for (record, model) in models() {
        if !decoders.contains(&model.description.family.model_type()) {
            continue;
        }
        let path = record.folder.join("model.safetensors");
        let theirs = candle_core::safetensors::load(path, device()).unwrap();
        let bare = |name: String| name.strip_prefix("model.").map_or(name.clone(), str::to_owned);
        let mut theirs: BTreeMap<_, _> =
            theirs.into_iter().map(|(name, tensor)| (bare(name), tensor)).collect();
        let frequencies = Tensor::zeros(3, DType::F32, device()).unwrap();
        for name in ["rotary_emb.inv_freq", "layers.0.self_attn.rotary_emb.inv_freq"] {
            theirs.insert(name.to_owned(), frequencies.clone());
        }
        let weights = model.description.rename(theirs).unwrap();
        assert_eq!(weights.notes(), Vec::<String>::new(), "{}", record.name);
        let ours = model.store.tensors();
        assert!(weights.tensors().keys().eq(ours.keys()), "{}", record.name);
        for (name, tensor) in weights.tensors() {
            assert_eq!(difference(tensor, &ours[name]), 0., "{}, {name}", record.name);
        }
    }
}

fn is_of_today(record: &Record) -> bool {
    ["tokenizer.json", "preprocessor_config.json"]
        .iter()
        .any(|name| record.folder.join(name).exists())
}

/// `TEALIGHT_EXPORT_DIR=DIR cargo nextest run --workspace --test hf --run-ignored only`, then
/// `python scripts/reference/verify.py crates/tealight-train/tests/golden/models DIR`.
#[test]
#[ignore = "it writes the folders that scripts/reference/verify.py checks"]
fn exported_for_transformers() {
    let to = std::env::var_os("TEALIGHT_EXPORT_DIR").expect("where to write to");
    for (record, _) in models() {
        let to = Path::new(&to).join(&record.name);
        export(&HfFolder::open(&record.folder).unwrap(), &to);
        for name in ["tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"] {
            if record.folder.join(name).exists() {
                fs::copy(record.folder.join(name), to.join(name)).unwrap();
            }
        }
    }
}

/// A folder of BERT to modify.
struct Changed {
    directory: tempfile::TempDir,
    config: Value,
    tensors: BTreeMap<String, Tensor>,
}

impl Changed {
    fn new() -> Self {
        let bert = |record: &Record| {
            let config = fs::read_to_string(record.folder.join("config.json")).unwrap();
            config.contains("\"BertForMaskedLM\"") && is_of_today(record)
        };
        let record = records().into_iter().find(bert).expect("a folder of BERT");
        let config = fs::read_to_string(record.folder.join("config.json")).unwrap();
        let path = record.folder.join("model.safetensors");
        let tensors = candle_core::safetensors::load(path, device()).unwrap();
        Self {
            directory: tempfile::tempdir().unwrap(),
            config: serde_json::from_str(&config).unwrap(),
            tensors: tensors.into_iter().collect(),
        }
    }

    fn with(key: &str, value: Value) -> Self {
        let mut changed = Self::new();
        changed.config[key] = value;
        changed
    }

    fn write(&self) {
        let path = self.directory.path();
        fs::write(path.join("config.json"), self.config.to_string()).unwrap();
        let model = path.join("model.safetensors");
        fs::write(&model, to_bytes(&model, &self.tensors).unwrap()).unwrap();
    }

    fn open(&self) -> Result<HfFolder, String> {
        self.write();
        HfFolder::open(self.directory.path()).map_err(|error| error.to_string())
    }

    /// The error message, which must name `file`.
    fn refused(&self, file: &str) -> String {
        let error = self.open().map(|_| ()).expect_err("an error");
        assert!(error.contains(&format!("{file}`")), "{error}");
        error
    }
}

#[test]
fn a_configuration_that_would_compute_something_else_is_refused_by_its_key() {
    for (key, value) in [
        ("position_embedding_type", json!("relative_key")),
        ("is_decoder", json!(true)),
        ("add_cross_attention", json!(true)),
        ("is_encoder_decoder", json!(true)),
        ("hidden_act", json!("quick_gelu")),
        ("hidden_act", json!(3)),
        ("hidden_size", json!("wide")),
        ("hidden_size", json!(-1)),
        ("num_hidden_layers", json!(2.5)),
        ("pad_token_id", json!(-1)),
        ("tie_word_embeddings", json!("yes")),
        ("pruned_heads", json!({ "0": [1] })),
        ("quantization_config", json!({ "bits": 4 })),
        ("model_type", json!("electra")),
    ] {
        let error = Changed::with(key, value).refused("config.json");
        assert!(error.contains(&format!("`{key}` = ")), "{error}");
    }
    let heads = Changed::with("num_attention_heads", json!(1009)).refused("config.json");
    assert!(heads.contains("`model.n_heads` = 1009 does not divide"), "{heads}");
}

#[test]
fn a_key_that_changes_nothing_is_read_over_and_one_that_nobody_knows_is_noted() {
    for (key, value) in [
        ("position_embedding_type", json!("absolute")),
        ("pruned_heads", json!({})),
        ("torch_dtype", json!("float16")),
        ("id2label", json!({ "0": "a" })),
        ("is_decoder", json!(null)),
    ] {
        assert_eq!(Changed::with(key, value).open().unwrap().notes, Vec::<String>::new(), "{key}");
    }
    let notes = Changed::with("sparkle", json!(7)).open().unwrap().notes;
    assert_eq!(notes, ["`sparkle` = 7 is unknown and ignored"]);
    let notes = Changed::with("hidden_dropout_prob", json!(0.1)).open().unwrap().notes;
    assert!(notes[0].starts_with("`attention_probs_dropout_prob` = 0 is ignored"), "{notes:?}");
}

#[test]
fn sizes_that_are_not_those_of_the_tensors_are_refused_and_nothing_is_allocated() {
    let config = Changed::new().config;
    let n_layers = &config["num_hidden_layers"];
    for (key, name) in [
        ("vocab_size", "word_embeddings"),
        ("num_hidden_layers", &format!("encoder.layer.{n_layers}.")),
        ("intermediate_size", "intermediate.dense"),
        ("max_position_embeddings", "position_embeddings"),
        ("type_vocab_size", "token_type_embeddings"),
        ("hidden_size", "word_embeddings"),
    ] {
        // A multiple of the size, so that the number of heads still divides it.
        let multiple = |shift: u32| json!(config[key].as_u64().unwrap() << shift);
        let error = Changed::with(key, multiple(10)).refused("model.safetensors");
        assert!(error.contains(name), "{key}: {error}");
        let error = Changed::with(key, multiple(30)).refused("config.json");
        assert!(error.contains(&format!("`{key}` = ")), "{error}");
    }
}

#[test]
fn a_tensor_that_is_missing_or_there_twice_is_named() {
    let mut changed = Changed::new();
    let name = changed.tensors.keys().find(|name| name.ends_with("output.dense.bias")).cloned();
    let (name, tensor) = changed.tensors.remove_entry(&name.unwrap()).unwrap();
    let error = changed.refused("model.safetensors");
    assert!(error.contains(&format!("no tensor `{name}`")), "{error}");
    changed.tensors.insert(name.clone(), tensor.to_dtype(DType::U8).unwrap());
    let error = changed.refused("model.safetensors");
    assert!(error.contains(&format!("no tensor `{name}`")), "{error}");
    assert!(error.contains("its numbers are not f16, bf16, f32 or f64"), "{error}");
    changed.tensors.insert(name.clone(), tensor.clone());

    let legacy = "bert.embeddings.LayerNorm.gamma";
    let norm = changed.tensors["bert.embeddings.LayerNorm.weight"].clone();
    changed.tensors.insert(legacy.to_owned(), norm);
    assert!(changed.refused("model.safetensors").contains("twice, once as"));
    changed.tensors.remove(legacy);

    changed.tensors.insert("adapter.weight".to_owned(), tensor);
    let notes = changed.open().unwrap().notes;
    assert_eq!(notes, ["1 tensor is unknown and ignored: `adapter.weight`"]);
}

/// Once such tensors were kept and exported, because the table of names contains them.
#[test]
fn a_tensor_that_no_layer_asks_for_is_named_and_not_kept() {
    let mut changed = Changed::new();
    let before = changed.open().unwrap();
    let one = changed.tensors["bert.embeddings.LayerNorm.weight"].clone();
    let strangers =
        ["encoder.layer.97.output.dense.bias", "encoder.layer.0.attention.self.conv.weight"];
    for name in strangers {
        changed.tensors.insert(format!("bert.{name}"), one.clone());
    }
    for harmless in ["bert.pooler.dense.bias", "cls.seq_relationship.bias"] {
        changed.tensors.insert(harmless.to_owned(), one.clone());
    }
    let after = changed.open().unwrap();
    assert!(before.weights.keys().eq(after.weights.keys()), "{:?}", after.weights.keys());
    let [conv, layer] = [strangers[1], strangers[0]].map(|name| format!("`bert.{name}`"));
    let note = format!("2 tensors are not used by this model and ignored: {conv}, {layer}");
    assert_eq!(after.notes, [note]);
}

#[test]
fn a_tied_matrix_may_be_there_and_must_be_the_same() {
    let mut changed = Changed::new();
    let words = changed.tensors["bert.embeddings.word_embeddings.weight"].clone();
    let decoder = "cls.predictions.decoder.weight";
    changed.tensors.insert(decoder.to_owned(), words.clone());
    changed.open().unwrap();
    changed.tensors.insert(decoder.to_owned(), (&words + 1.).unwrap());
    let error = changed.refused("model.safetensors");
    assert!(error.contains(decoder) && error.contains("tie_word_embeddings"), "{error}");
}

#[test]
fn an_untied_head_has_a_matrix_of_its_own_and_the_decoder_s_bias() {
    let mut changed = Changed::with("tie_word_embeddings", json!(false));
    assert!(changed.refused("model.safetensors").contains("`cls.predictions.decoder.weight`"));
    let words = changed.tensors["bert.embeddings.word_embeddings.weight"].clone();
    let matrix = (&words * 2.).unwrap();
    changed.tensors.insert("cls.predictions.decoder.weight".to_owned(), matrix.clone());
    let opened = changed.open().unwrap();
    assert_eq!(difference(&opened.weights["output.weight"], &matrix), 0.);

    let bias = (&changed.tensors["cls.predictions.bias"] + 1.).unwrap();
    changed.tensors.insert("cls.predictions.decoder.bias".to_owned(), bias.clone());
    let opened = changed.open().unwrap();
    assert_eq!(difference(&opened.weights["output.bias"], &bias), 0.);

    // Both names are written: version 4 of transformers reads one, version 5 the other.
    let directory = tempfile::tempdir().unwrap();
    export(&opened, directory.path());
    let path = directory.path().join("model.safetensors");
    let written = candle_core::safetensors::load(path, device()).unwrap();
    for name in ["cls.predictions.bias", "cls.predictions.decoder.bias"] {
        assert_eq!(difference(&written[name], &bias), 0., "{name}");
    }
}

#[test]
fn a_backbone_without_its_prefix_and_brain_floats_are_read() {
    let mut changed = Changed::new();
    let bare = |name: String| name.strip_prefix("bert.").map_or(name.clone(), str::to_owned);
    let before = changed.open().unwrap();
    let tensors = std::mem::take(&mut changed.tensors).into_iter();
    changed.tensors =
        tensors.map(|(name, tensor)| (bare(name), tensor.to_dtype(DType::BF16).unwrap())).collect();
    let after = changed.open().unwrap();
    for (name, tensor) in &before.weights {
        assert_eq!(after.weights[name].dtype(), DType::F32);
        let tensor = tensor.to_dtype(DType::BF16).unwrap();
        assert_eq!(difference(&tensor, &after.weights[name]), 0., "{name}");
    }
}

#[test]
fn damaged_files_are_named_and_nothing_panics() {
    let changed = Changed::new();
    changed.write();
    let model = changed.directory.path().join("model.safetensors");
    let bytes = fs::read(&model).unwrap();
    let open = || HfFolder::open(changed.directory.path()).unwrap_err().to_string();
    let header =
        |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &[0; 16]].concat();
    let tensor = |shape: &str, offsets: &str| {
        let entry = format!("\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":{offsets}");
        header(&format!("{{\"a\":{{{entry}}}}}"))
    };
    for damaged in [
        bytes[..bytes.len() - 5].to_vec(),
        bytes[..4].to_vec(),
        Vec::new(),
        vec![255; 99],
        header("{"),
        header("[]"),
        tensor("[4]", "[0,99]"),
        tensor("[4]", "[16,0]"),
        tensor("[5]", "[0,16]"),
        tensor("[4294967296,4294967296,4294967296]", "[0,16]"),
        tensor("[-1]", "[0,16]"),
        [&u64::MAX.to_le_bytes()[..], b"{}"].concat(),
    ] {
        fs::write(&model, damaged).unwrap();
        let error = open();
        assert!(error.contains("model.safetensors`"), "{error}");
    }
    fs::remove_file(&model).unwrap();
    for file in ["model.safetensors`", "model.safetensors.index.json`", "pytorch_model.bin`"] {
        assert!(open().contains("it has no weights") && open().contains(file), "{}", open());
    }
    for config in ["", "{", "[]", "{\"model_type\": 3}", "{}", "null", "{\"a\": 1e999}"] {
        fs::write(changed.directory.path().join("config.json"), config).unwrap();
        let error = open();
        assert!(error.contains("config.json`"), "{error}");
    }
}

#[test]
fn an_index_leads_nowhere_else_and_names_what_is_there() {
    let changed = Changed::new();
    changed.write();
    let path = changed.directory.path();
    fs::rename(path.join("model.safetensors"), path.join("a.safetensors")).unwrap();
    let name = changed.tensors.keys().next().unwrap();
    let open = |index: Value| {
        fs::write(path.join("model.safetensors.index.json"), index.to_string()).unwrap();
        HfFolder::open(path).map_err(|error| error.to_string())
    };
    open(json!({ "weight_map": { name: "a.safetensors" } })).unwrap();
    for file in ["../a.safetensors", "/etc/passwd", "", ".", "..", "a/b"] {
        let error = open(json!({ "weight_map": { name: file } })).unwrap_err();
        assert!(error.contains("is not a file beside it"), "{error}");
    }
    for (index, file) in [
        (json!({ "weight_map": { "b": "a.safetensors" } }), "a.safetensors"),
        (json!({ "weight_map": { name: "b.safetensors" } }), "b.safetensors"),
        (json!({ "weight_map": 3 }), "index.json"),
        (json!({}), "index.json"),
    ] {
        let error = open(index).unwrap_err();
        assert!(error.contains(&format!("{file}`")), "{error}");
    }
    fs::copy(path.join("a.safetensors"), path.join("b.safetensors")).unwrap();
    let twice = json!({ "weight_map": { "b": "b.safetensors", name: "a.safetensors" } });
    assert!(open(twice).unwrap_err().contains("is also in another file"));
}
