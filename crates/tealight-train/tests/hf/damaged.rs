//! Damaged folders of every family and head: one message names the file, the key or the tensor, and the rule.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use candle_core::{DType, Tensor};
use serde_json::{Value, json};
use tealight_model::hf;
use tealight_ops::testing::device;
use tealight_train::storage::tensors::to_bytes;
use tealight_train::trained::folder::HfFolder;

use crate::record::{Record, evil, records};

const MODEL: &str = "model.safetensors";

/// A copy of a folder.
struct Copy {
    label: String,
    directory: tempfile::TempDir,
    config: Value,
    tensors: BTreeMap<String, Tensor>,
}

impl Copy {
    fn from_record(record: &Record) -> Self {
        let config = fs::read_to_string(record.folder.join("config.json")).unwrap();
        let tensors = candle_core::safetensors::load(record.folder.join(MODEL), device()).unwrap();
        let copy = Self {
            label: record.name.clone(),
            directory: tempfile::tempdir().unwrap(),
            config: serde_json::from_str(&config).unwrap(),
            tensors: tensors.into_iter().collect(),
        };
        copy.write_config(&copy.config);
        copy.write(MODEL, &copy.tensors);
        copy
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn write_config(&self, config: &Value) {
        fs::write(self.path().join("config.json"), config.to_string()).unwrap();
    }

    fn write(&self, file: &str, tensors: &BTreeMap<String, Tensor>) {
        let path = self.path().join(file);
        fs::write(&path, to_bytes(&path, tensors).unwrap()).unwrap();
    }

    /// Asserts that the folder is refused in one line that names the `file` and contains `parts`.
    fn assert_refused(&self, file: &str, parts: &[&str]) {
        let label = &self.label;
        let error = HfFolder::open(self.path()).map(|_| ()).expect_err(label).to_string();
        let is_line = error.lines().count() == 1;
        assert!(error.contains(&format!("{file}`")) && is_line, "{label}: {error}");
        for part in parts {
            assert!(error.contains(part), "{label}: `{part}` is not in: {error}");
        }
    }

    /// The tensors that the model needs, of layers the first one's only: without each of the others the folder opens.
    fn needed(&self) -> Vec<&String> {
        let is_needed = |name: &&String| {
            if [".1.", ".2."].iter().any(|layer| name.contains(layer)) {
                return false;
            }
            let mut others = self.tensors.clone();
            others.remove(*name);
            self.write(MODEL, &others);
            HfFolder::open(self.path()).is_err()
        };
        self.tensors.keys().filter(is_needed).collect()
    }
}

/// A copy of every folder whose tensors are in one file.
fn copies() -> Vec<Copy> {
    let records = records().into_iter().filter(|record| record.folder.join(MODEL).exists());
    let copies: Vec<_> = records.map(|record| Copy::from_record(&record)).collect();
    let families: Vec<_> =
        copies.iter().map(|copy| copy.config["model_type"].as_str().unwrap()).collect();
    for family in [
        "bert",
        "modernbert",
        "llama",
        "mistral",
        "ministral",
        "qwen3",
        "mamba2",
        "olmo_hybrid",
        "gpt2",
        "t5",
    ] {
        // Records of other seeds may have fewer families.
        let is_recorded = std::env::var_os("TEALIGHT_GOLDEN_DIR").is_some();
        assert!(is_recorded || families.contains(&family), "{family} among {families:?}");
    }
    copies
}

#[test]
fn a_tensor_that_is_missing_misshapen_or_of_whole_numbers_is_named() {
    for copy in copies() {
        let needed = copy.needed();
        assert!(needed.len() > copy.tensors.len() / 4, "{}: {needed:?}", copy.label);
        for name in needed {
            // A file may leave out the prefix of the backbone.
            let quoted = format!("{name}`");
            let mut damaged = copy.tensors.clone();
            let tensor = damaged.remove(name).unwrap();
            copy.write(MODEL, &damaged);
            // Old files have gamma and beta for weight and bias; the name of today is told.
            let is_old = [".gamma", ".beta"].iter().any(|end| name.ends_with(end));
            let parts: &[&str] =
                if is_old { &["there is no tensor"] } else { &["there is no tensor", &quoted] };
            copy.assert_refused(MODEL, parts);

            // Not along the first axis: a classifier has as many labels as its output has rows.
            let axis = tensor.rank() - 1;
            let n = tensor.dim(axis).unwrap();
            let cut = if n > 1 { tensor.narrow(axis, 0, n - 1) } else { tensor.repeat(2) };
            damaged.insert(name.clone(), cut.unwrap().contiguous().unwrap());
            copy.write(MODEL, &damaged);
            let parts: &[&str] = if is_old { &["has shape"] } else { &["has shape", &quoted] };
            copy.assert_refused(MODEL, parts);

            damaged.insert(name.clone(), tensor.to_dtype(DType::I64).unwrap());
            copy.write(MODEL, &damaged);
            let parts: &[&str] = if is_old {
                &["there is no tensor"]
            } else {
                &[&quoted, "its numbers are not f16, bf16, f32 or f64"]
            };
            copy.assert_refused(MODEL, parts);
        }
    }
}

#[test]
fn a_truncated_file_is_measured() {
    for copy in copies() {
        let path = copy.path().join(MODEL);
        let bytes = fs::read(&path).unwrap();
        let sizes = format!("has {} bytes and should have {}", bytes.len() - 3, bytes.len());
        fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
        copy.assert_refused(MODEL, &[&sizes]);
        fs::write(&path, &bytes[..5]).unwrap();
        copy.assert_refused(MODEL, &["is not a safetensors file"]);
    }
}

#[test]
fn a_missing_shard_is_named() {
    for copy in copies() {
        let names: Vec<_> = copy.tensors.keys().collect();
        let file = |i: usize| if i < names.len() / 2 { "a.safetensors" } else { "b.safetensors" };
        let map: BTreeMap<_, _> =
            names.iter().enumerate().map(|(i, &name)| (name.clone(), file(i))).collect();
        let of = |shard: &str| {
            let is_there = |(name, _): &(&String, &Tensor)| map[*name] == shard;
            let there = copy.tensors.iter().filter(is_there);
            there.map(|(name, tensor)| (name.clone(), tensor.clone())).collect::<BTreeMap<_, _>>()
        };
        fs::remove_file(copy.path().join(MODEL)).unwrap();
        let index = json!({ "weight_map": map }).to_string();
        fs::write(copy.path().join("model.safetensors.index.json"), index).unwrap();
        copy.write("a.safetensors", &of("a.safetensors"));
        copy.assert_refused("b.safetensors", &["cannot read"]);

        let mut half = of("b.safetensors");
        let (name, _) = half.pop_last().unwrap();
        copy.write("b.safetensors", &half);
        copy.assert_refused("b.safetensors", &[&format!("it has no tensor `{name}`")]);
        copy.write("b.safetensors", &of("b.safetensors"));
        HfFolder::open(copy.path()).unwrap();
    }
}

#[test]
fn a_pickle_that_runs_a_program_is_refused_whatever_the_family() {
    let (folder, file, marker) = evil().remove(0);
    for copy in copies() {
        fs::remove_file(copy.path().join(MODEL)).unwrap();
        fs::copy(folder.join(&file), copy.path().join(&file)).unwrap();
        copy.assert_refused(&file, &["`posix.system`"]);
        assert!(!Path::new(&marker).exists() && !copy.path().join(&marker).exists());
    }
}

#[test]
fn a_key_that_is_unknown_is_noted_and_a_wrong_value_is_refused() {
    for copy in copies() {
        let with = |key: &str, value: Value| {
            let mut config = copy.config.clone();
            config[key] = value;
            copy.write_config(&config);
        };
        with("sparkle", json!(7));
        let notes = HfFolder::open(copy.path()).unwrap().notes;
        let note = "`sparkle` = 7 is unknown and ignored".to_owned();
        assert!(notes.contains(&note), "{}: {notes:?}", copy.label);

        // A model of pictures has no words.
        if let Some(n_words) = copy.config["vocab_size"].as_u64() {
            with("vocab_size", json!("many"));
            let rule = "`vocab_size` = \"many\" must be a whole number";
            copy.assert_refused("config.json", &[rule]);
            with("vocab_size", json!(n_words + 1));
            copy.assert_refused(MODEL, &["should have", &(n_words + 1).to_string()]);
        }
        with("quantization_config", json!({ "bits": 4 }));
        copy.assert_refused("config.json", &["`quantization_config` = ", "is not supported"]);
        with("model_type", json!("mamba"));
        copy.assert_refused("config.json", &["`model_type` = \"mamba\" is unknown"]);
    }
}

/// What a stranger may write in place of any value.
fn strange_values() -> Vec<Value> {
    let numbers = [i64::MIN, -1, 0, 1, 7, 1 << 20, (1 << 20) + 1, 10_000_000_000, i64::MAX];
    let mut values: Vec<Value> = numbers.map(Value::from).into();
    values.extend([json!(u64::MAX), json!(1e308), json!(-0.5), json!(0.5), json!(null)]);
    values.extend([
        json!(true),
        json!(false),
        json!(""),
        json!("gelu"),
        json!("9223372036854775807"),
    ]);
    values.extend([json!([]), json!([u64::MAX, u64::MAX]), json!({}), json!([[[[]]]])]);
    let nested = (0..100).fold(json!(1), |value, _| json!([value]));
    values.extend([nested, json!({ "rope_type": "llama3", "factor": 1e300 })]);
    values.extend([json!("x".repeat(1 << 16)), json!(vec!["sliding_attention"; 1000])]);
    values
}

/// A number of layers of 2^63 − 1 aborted the program, which allocated an entry for each of them.
#[test]
fn no_value_of_any_key_of_a_configuration_is_fatal() {
    let mut n = 0;
    for mut copy in copies() {
        let keys: Vec<String> = copy.config.as_object().unwrap().keys().cloned().collect();
        // The tensors of a classifier of each family, so that its keys are read as well.
        let outputs = ["classifier", "classifier.out_proj"];
        let shapes = outputs.map(|name| (format!("{name}.weight"), vec![3, 8])).into();
        for key in &keys {
            let before = copy.config[key].clone();
            for value in strange_values() {
                copy.config[key] = value;
                let text = copy.config.to_string();
                let _ = hf::describe(&text);
                let _ = hf::describe_folder(&text, &shapes);
                n += 1;
            }
            for huge in [json!(1 << 20), json!(i64::MAX)] {
                copy.config[key] = huge;
                copy.write_config(&copy.config);
                let _ = HfFolder::open(copy.path());
            }
            copy.config[key] = before;
        }
    }
    assert!(n > 5000, "{n}");
}

#[test]
fn too_many_layers_are_refused_by_the_key_of_the_family() {
    for copy in copies() {
        let key = ["num_hidden_layers", "n_layer", "num_layers", "n_layers"]
            .into_iter()
            .find(|key| copy.config.get(key).is_some())
            .expect("a number of layers");
        for n in [10_001, 10_000_000_000, i64::MAX as u64, u64::MAX] {
            let mut config = copy.config.clone();
            config[key] = n.into();
            copy.write_config(&config);
            let rule = format!("`{key}` = {n} must be at most 10000");
            copy.assert_refused("config.json", &[&rule]);
        }
    }
}
