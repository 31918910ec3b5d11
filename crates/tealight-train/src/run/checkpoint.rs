//! A checkpoint: everything that a run needs to go on as if it had never stopped.
//!
//! ```text
//! step-000500/model.safetensors       the parameters
//!             optimizer.safetensors   what the optimizer remembers
//!             ema.safetensors         averages of the parameters, where the run keeps them
//!             state.json              the step, the best evaluation, the sizes of the files above
//! ```
//!
//! Equal checkpoints are equal byte for byte.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use candle_core::Device;
use serde::{Deserialize, Serialize};

use super::files;
use super::tensors::{self, NamedTensors};
use crate::early_stopping;
use crate::error::{Error, Result};

/// The version of `state.json` that is written, and the newest that is read.
pub const FORMAT_VERSION: u64 = 1;

/// The parameters, in a checkpoint or alone.
pub const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const EMA: &str = "ema.safetensors";
const STATE: &str = "state.json";

/// Everything that a run needs to go on.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The parameters by name.
    pub model: NamedTensors,
    /// What the optimizer remembers.
    pub optimizer: NamedTensors,
    /// Averages of the parameters, if the run keeps them.
    pub ema: Option<NamedTensors>,
    /// What is not a tensor.
    pub state: State,
}

/// The part of a checkpoint that is not a tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct State {
    /// Updates done.
    pub step: u64,
    /// The run's seed.
    pub seed: u64,
    /// The best evaluation, and how long ago it was.
    pub early_stopping: early_stopping::State,
}

/// `state.json` as it is on the disk.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format_version: u64,
    files: BTreeMap<String, u64>,
    state: State,
}

impl Checkpoint {
    /// Reads a checkpoint's directory.
    pub fn load(directory: &Path, device: &Device) -> Result<Self> {
        let document = Document::load(directory)?;
        let has_ema = document.files.contains_key(EMA);
        let load = |name: &'static str| tensors::load(&require(directory, name)?, device);
        Ok(Self {
            model: load(MODEL)?,
            optimizer: load(OPTIMIZER)?,
            ema: has_ema.then(|| load(EMA)).transpose()?,
            state: document.state,
        })
    }

    /// Writes the files into an empty directory, and waits for the disk.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let mut files = BTreeMap::new();
        let all = [(MODEL, Some(&self.model)), (OPTIMIZER, Some(&self.optimizer))];
        for (name, tensors) in all.into_iter().chain([(EMA, self.ema.as_ref())]) {
            let Some(tensors) = tensors else { continue };
            let path = directory.join(name);
            let bytes = tensors::to_bytes(&path, tensors)?;
            files::write(&path, &bytes)?;
            files.insert(name.to_owned(), bytes.len() as u64);
        }
        let path = directory.join(STATE);
        let document =
            Document { format_version: FORMAT_VERSION, files, state: self.state.clone() };
        files::write(&path, &files::to_json(&path, &document)?)
    }
}

/// Reads the weights that a checkpoint is used with, and nothing else: the averages of the
/// parameters, where it has them, else the parameters.
pub fn load_weights(directory: &Path, device: &Device) -> Result<NamedTensors> {
    let document = Document::load(directory)?;
    let name = if document.files.contains_key(EMA) { EMA } else { MODEL };
    tensors::load(&require(directory, name)?, device)
}

/// Whether a directory was written as a checkpoint; a complete one, because it was renamed.
pub(super) fn is_checkpoint(directory: &Path) -> bool {
    directory.join(STATE).is_file()
}

impl Document {
    fn load(directory: &Path) -> Result<Self> {
        let document: Self = files::read_json(&require(directory, STATE)?, FORMAT_VERSION)?;
        for (name, &expected) in &document.files {
            let path = require(directory, name)?;
            let actual = fs::metadata(&path).map_err(Error::io("read", &path))?.len();
            if actual != expected {
                return Err(Error::Size { path, expected, actual });
            }
        }
        Ok(document)
    }
}

/// The path of a file that every checkpoint has.
fn require(directory: &Path, name: &str) -> Result<PathBuf> {
    let path = directory.join(name);
    match fs::metadata(&path) {
        Ok(_) => Ok(path),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err(Error::NotACheckpoint { path: directory.to_owned(), missing: name.to_owned() })
        }
        Err(error) => Err(Error::io("read", &path)(error)),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use candle_core::Tensor;

    use super::*;
    use crate::early_stopping::Best;
    use crate::run::tensors::tests::all_bits;

    /// A checkpoint whose tensors depend on the step.
    pub(in crate::run) fn example(step: u64) -> Checkpoint {
        let tensor = |scale: f64| {
            let values: Vec<f32> = (0..15).map(|i| (f64::from(i) * scale).sin() as f32).collect();
            Tensor::from_vec(values, (3, 5), &Device::Cpu).unwrap()
        };
        let step_count = Tensor::new(i64::try_from(step).unwrap(), &Device::Cpu).unwrap();
        let best = Best { step: 3, value: 0.1 + 0.2 };
        Checkpoint {
            model: BTreeMap::from([("a.weight".into(), tensor(step as f64))]),
            optimizer: BTreeMap::from([
                ("a.weight.first_moment".into(), tensor(0.5)),
                ("step".into(), step_count),
            ]),
            ema: Some(BTreeMap::from([("a.weight".into(), tensor(0.7))])),
            state: State {
                step,
                seed: u64::MAX,
                early_stopping: early_stopping::State {
                    best: Some(best),
                    reference: Some(0.3),
                    n_without_improvement: 4,
                },
            },
        }
    }

    fn written(checkpoint: &Checkpoint) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        checkpoint.write(directory.path()).unwrap();
        directory
    }

    fn message(directory: &Path) -> String {
        Checkpoint::load(directory, &Device::Cpu).unwrap_err().to_string()
    }

    #[test]
    fn what_is_read_is_what_was_written() {
        let directory = written(&example(11));
        let loaded = Checkpoint::load(directory.path(), &Device::Cpu).unwrap();
        assert_eq!(loaded.state, example(11).state);
        assert_eq!(all_bits(&loaded.model), all_bits(&example(11).model));
        assert_eq!(all_bits(&loaded.optimizer), all_bits(&example(11).optimizer));
        assert_eq!(all_bits(&loaded.ema.unwrap()), all_bits(&example(11).ema.unwrap()));
    }

    #[test]
    fn equal_checkpoints_are_equal_byte_for_byte_also_after_loading() {
        let first = written(&example(11));
        let second = written(&Checkpoint::load(first.path(), &Device::Cpu).unwrap());
        for name in [MODEL, OPTIMIZER, EMA, STATE] {
            let read = |directory: &tempfile::TempDir| fs::read(directory.path().join(name));
            assert_eq!(read(&first).unwrap(), read(&second).unwrap(), "{name}");
        }
    }

    #[test]
    fn without_averages_there_is_no_file_of_them() {
        let directory = written(&Checkpoint { ema: None, ..example(11) });
        assert!(!directory.path().join(EMA).exists());
        assert!(Checkpoint::load(directory.path(), &Device::Cpu).unwrap().ema.is_none());
    }

    #[test]
    fn missing_files_are_named() {
        for name in [MODEL, OPTIMIZER, EMA, STATE] {
            let directory = written(&example(11));
            fs::remove_file(directory.path().join(name)).unwrap();
            let rule = format!("is not a checkpoint: there is no `{name}`");
            assert!(message(directory.path()).ends_with(&rule), "{name}");
        }
    }

    #[test]
    fn files_that_were_cut_off_are_measured() {
        for name in [MODEL, OPTIMIZER, EMA] {
            let directory = written(&example(11));
            let path = directory.path().join(name);
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() - 3]).unwrap();
            let sizes = format!("has {} bytes and should have {}", bytes.len() - 3, bytes.len());
            assert!(message(directory.path()).contains(&sizes), "{name}");
        }
    }

    #[test]
    fn garbage_and_other_versions_are_refused() {
        let directory = written(&example(11));
        let path = directory.path().join(STATE);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert!(message(directory.path()).ends_with("is not the JSON that it should be"));
        fs::write(&path, text.replace("\"format_version\": 1", "\"format_version\": 9")).unwrap();
        assert!(message(directory.path()).contains("format version 9"));
        fs::write(&path, &text).unwrap();
        let model = directory.path().join(MODEL);
        let size = fs::metadata(&model).unwrap().len();
        fs::write(&model, vec![b'{'; size as usize]).unwrap();
        assert!(message(directory.path()).contains("model.safetensors` is not a safetensors file"));
    }

    #[test]
    fn the_averages_are_used_where_there_are_any() {
        let weights = |checkpoint: &Checkpoint| {
            all_bits(&load_weights(written(checkpoint).path(), &Device::Cpu).unwrap())
        };
        let averaged = example(11);
        assert_eq!(weights(&averaged), all_bits(averaged.ema.as_ref().unwrap()));
        let plain = Checkpoint { ema: None, ..averaged };
        assert_eq!(weights(&plain), all_bits(&plain.model));
    }

    /// Written by format version 1 and never to be changed: later versions must read it.
    #[test]
    fn version_1_can_be_read() {
        let directory = written(&example(11));
        let text = r#"{"format_version":1,"files":{},"state":{"step":11,"seed":17,
            "early_stopping":{"best":{"step":3,"value":0.5},"n_without_improvement":1}}}"#;
        fs::write(directory.path().join(STATE), text).unwrap();
        let state = Document::load(directory.path()).unwrap().state;
        let best = Some(Best { step: 3, value: 0.5 });
        let early_stopping =
            early_stopping::State { best, reference: None, n_without_improvement: 1 };
        assert_eq!(state, State { step: 11, seed: 17, early_stopping });
    }
}
