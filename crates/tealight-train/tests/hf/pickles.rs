//! Folders with `pytorch_model.bin`. Their results are checked like those of all others.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use tealight_train::trained::TrainedModel;
use tealight_train::trained::folder::HfFolder;

use crate::record::{Record, difference, evil, records};

/// The folders with a whole file of `torch.save`, in one format or the other.
fn pickled() -> Vec<Record> {
    let is_pickled = |record: &Record| record.folder.join("pytorch_model.bin").exists();
    let pickled: Vec<_> = records().into_iter().filter(is_pickled).collect();
    assert!(!pickled.is_empty());
    pickled
}

/// Copies a folder, except `expected.*`.
fn copied(folder: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        if !entry.file_name().to_string_lossy().starts_with("expected") {
            fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
        }
    }
    copy
}

fn open(folder: &Path) -> Result<HfFolder, String> {
    HfFolder::open(folder).map_err(|error| error.to_string())
}

#[test]
fn a_pickle_that_runs_a_program_is_refused_by_its_name_and_runs_nothing() {
    let evil = evil();
    assert!(!evil.is_empty());
    for (folder, file, marker) in evil {
        for error in
            [open(&folder).unwrap_err(), TrainedModel::open(&folder, None).unwrap_err().to_string()]
        {
            assert!(error.contains(&file) && error.contains("`posix.system`"), "{error}");
        }
        assert!(!Path::new(&marker).exists() && !folder.join(&marker).exists());
    }
}

#[test]
fn safetensors_are_preferred_and_the_pickle_beside_them_is_not_read() {
    let (folder, file, _) = evil().remove(0);
    let copy = copied(&records()[0].folder);
    fs::copy(folder.join(&file), copy.path().join(&file)).unwrap();
    open(copy.path()).unwrap();
    fs::remove_file(copy.path().join("model.safetensors")).unwrap();
    assert!(open(copy.path()).unwrap_err().contains("posix.system"));
}

#[test]
fn without_a_model_type_the_names_of_the_tensors_tell_it() {
    let record = pickled().remove(0);
    let copy = copied(&record.folder);
    let config = copy.path().join("config.json");
    let mut keys: Value = serde_json::from_str(&fs::read_to_string(&config).unwrap()).unwrap();
    let before = open(copy.path()).unwrap();
    let model_type = keys.as_object_mut().unwrap().remove("model_type").unwrap();
    keys["architectures"] = Value::Null;
    fs::write(&config, keys.to_string()).unwrap();
    let after = open(copy.path()).unwrap();
    assert_eq!(after.description.config, before.description.config);
    let note = format!("`model_type` is missing: it is {model_type} by the names of the tensors");
    assert!(after.notes.contains(&note), "{:?}", after.notes);
    for (name, tensor) in &before.weights {
        assert_eq!(difference(tensor, &after.weights[name]), 0.);
    }
    keys["model_type"] = json!("");
    fs::write(&config, keys.to_string()).unwrap();
    assert!(open(copy.path()).unwrap_err().contains("`model_type` = \"\" is unknown"));
}

#[test]
fn a_damaged_shard_is_named() {
    let is_sharded = |one: &Record| one.folder.join("pytorch_model.bin.index.json").exists();
    let record = records().into_iter().find(is_sharded).unwrap();
    let copy = copied(&record.folder);
    let index = fs::read_to_string(copy.path().join("pytorch_model.bin.index.json")).unwrap();
    let index: Value = serde_json::from_str(&index).unwrap();
    let (_, shard) = index["weight_map"].as_object().unwrap().iter().next().unwrap();
    let shard = shard.as_str().unwrap();
    let bytes = fs::read(copy.path().join(shard)).unwrap();
    for (damaged, rule) in [
        (&bytes[..bytes.len() / 2], "the zip archive"),
        (b"a pickle?", "neither a zip archive nor a pickle"),
        (b"", "neither a zip archive nor a pickle"),
    ] {
        fs::write(copy.path().join(shard), damaged).unwrap();
        let error = open(copy.path()).unwrap_err();
        assert!(error.contains(shard) && error.contains(rule), "{error}");
    }
    fs::remove_file(copy.path().join(shard)).unwrap();
    assert!(open(copy.path()).unwrap_err().contains(&format!("{shard}`")));
}
