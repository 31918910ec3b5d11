//! A checkpoint: everything that is needed to resume a run bit for bit.
//!
//! ```text
//! step-000500/model.safetensors       the parameters
//!             optimizer.safetensors   the state of the optimizer
//!             ema.safetensors         the moving average of the parameters, if the run has one
//!             state.json              step, seed, best evaluation, bad steps; the sizes of the files above
//!             SHA256SUMS              digests of all of them
//! ```
//!
//! Equal checkpoints are equal byte for byte. Reading a file compares its size and its digest, so a damaged
//! file is an error and never gives wrong values.
//!
//! | format version | |
//! |---|---|
//! | 1 | no `SHA256SUMS`; no `guard` in the state |
//! | 2 | as above |

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use candle_core::Device;
use serde::{Deserialize, Serialize};

use crate::communicator::ranks::Ranks;
use crate::error::{Error, Result};
use crate::monitor::bad_step::BadStepState;
use crate::monitor::early_stopping::{BestBy, EarlyStoppingState};
use crate::storage::digests::{DigestReader, SUMS, Sums};
use crate::storage::files;
use crate::storage::tensors::{self, NamedTensors};

/// The version of `state.json` that is written, and the newest that is read.
pub const FORMAT_VERSION: u64 = 2;

/// The first version with digests.
const WITH_SUMS: u64 = 2;

/// The file of the parameters, in a checkpoint and in exported folders.
pub const MODEL: &str = "model.safetensors";
const OPTIMIZER: &str = "optimizer.safetensors";
const EMA: &str = "ema.safetensors";
const STATE: &str = "state.json";

/// The content of a checkpoint.
#[derive(Clone, Debug)]
pub struct Checkpoint {
    /// The parameters by name.
    pub model: NamedTensors,
    /// The state of the optimizer.
    pub optimizer: NamedTensors,
    /// The moving average of the parameters, if the run has one.
    pub ema: Option<NamedTensors>,
    /// Everything that is not a tensor.
    pub state: CheckpointState,
}

/// The part of a checkpoint that is not tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckpointState {
    /// Number of updates done.
    pub step: u64,
    /// The run's seed.
    pub seed: u64,
    /// The best evaluation, and the evaluations without improvement since.
    pub early_stopping: EarlyStoppingState,
    /// The best evaluation by `checkpoint.metric`, if the run has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestBy>,
    /// Skipped steps and roll-backs.
    #[serde(default, rename = "guard")]
    pub bad_step: BadStepState,
}

/// The content of `state.json`.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StateFile {
    format_version: u64,
    /// The size of each file of tensors, in bytes.
    files: BTreeMap<String, u64>,
    state: CheckpointState,
}

impl Checkpoint {
    /// Reads a checkpoint from its directory.
    pub fn load(directory: &Path, device: &Device) -> Result<Self> {
        let files = CheckpointFiles::open(directory)?;
        let load = |name: &'static str| files.tensors(name, device);
        Ok(Self {
            model: load(MODEL)?,
            optimizer: load(OPTIMIZER)?,
            ema: files.has(EMA).then(|| load(EMA)).transpose()?,
            state: files.state_file.state.clone(),
        })
    }

    /// Writes the files into an empty directory and syncs them to the disk.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let (mut sizes, mut sums) = (BTreeMap::new(), Sums::default());
        let mut write = |name: &str, bytes: &[u8]| {
            sums.add(name, bytes);
            files::write(&directory.join(name), bytes)
        };
        let ema = self.ema.as_ref().map(|ema| (EMA, ema));
        let all = [(MODEL, &self.model), (OPTIMIZER, &self.optimizer)].into_iter().chain(ema);
        for (name, tensors) in all {
            let bytes = tensors::to_bytes(&directory.join(name), tensors)?;
            sizes.insert(name.to_owned(), bytes.len() as u64);
            write(name, &bytes)?;
        }
        let state = self.state.clone();
        let state = StateFile { format_version: FORMAT_VERSION, files: sizes, state };
        write(STATE, &files::to_json(&directory.join(STATE), &state)?)?;
        files::write(&directory.join(SUMS), sums.text().as_bytes())
    }
}

/// What rank 0 tells the others of a checkpoint before it sends the tensors.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Outline {
    has_ema: bool,
    /// As JSON: the state leaves out fields that are not set.
    state: String,
}

impl Checkpoint {
    pub(crate) fn outline(&self) -> Result<Outline> {
        let json = files::to_json(STATE.as_ref(), &self.state)?;
        let state = String::from_utf8_lossy(&json).into_owned();
        Ok(Outline { has_ema: self.ema.is_some(), state })
    }
}

impl Outline {
    /// The checkpoint that rank 0 has `loaded`, on all ranks. Beside the tensors, one file at a time is held as bytes.
    ///
    /// # Errors
    /// If tensors cannot be copied, or communication fails.
    pub(crate) fn spread(
        self,
        loaded: Option<&Checkpoint>,
        ranks: &Ranks,
        device: &Device,
    ) -> Result<Checkpoint> {
        let spread = |name: &str, own| spread(name, own, ranks, device);
        let of_ema = || spread(EMA, loaded.and_then(|loaded| loaded.ema.as_ref()));
        Ok(Checkpoint {
            model: spread(MODEL, loaded.map(|loaded| &loaded.model))?,
            optimizer: spread(OPTIMIZER, loaded.map(|loaded| &loaded.optimizer))?,
            ema: self.has_ema.then(of_ema).transpose()?,
            state: serde_json::from_str(&self.state).map_err(Error::json(STATE.as_ref()))?,
        })
    }
}

/// The tensors of rank 0, on all ranks.
fn spread(
    name: &str,
    own: Option<&NamedTensors>,
    ranks: &Ranks,
    device: &Device,
) -> Result<NamedTensors> {
    let to_bytes = |tensors| tensors::to_bytes(name.as_ref(), tensors);
    let bytes = ranks.bytes_of_first(|| own.map_or_else(|| Ok(Vec::new()), to_bytes))?;
    match own {
        Some(own) => Ok(own.clone()),
        None => tensors::from_bytes(name.as_ref(), &bytes, device),
    }
}

/// Reads only the weights for inference: the moving average of the parameters if the checkpoint has one,
/// otherwise the parameters.
pub fn load_weights(directory: &Path, device: &Device) -> Result<NamedTensors> {
    let files = CheckpointFiles::open(directory)?;
    files.tensors(if files.has(EMA) { EMA } else { MODEL }, device)
}

/// Reads all files of a checkpoint; the error describes the first damaged one.
pub fn verify(directory: &Path) -> Result<()> {
    let files = CheckpointFiles::open(directory)?;
    for name in files.state_file.files.keys() {
        files
            .checked(name, |path, size, reader| tensors::header(path, size, reader).map(|_| ()))?;
    }
    Ok(())
}

/// The size of all files of a checkpoint, in bytes.
pub fn size(directory: &Path) -> Result<u64> {
    let sizes = fs::read_dir(directory).and_then(|entries| {
        entries.map(|entry| Ok(entry?.metadata()?.len())).sum::<std::io::Result<u64>>()
    });
    sizes.map_err(Error::io("read", directory))
}

/// Reads the part of a checkpoint that is not tensors.
pub(super) fn load_state(directory: &Path) -> Result<CheckpointState> {
    Ok(CheckpointFiles::open(directory)?.state_file.state)
}

/// The files of a checkpoint. Reading one checks its size and its digest.
struct CheckpointFiles<'a> {
    directory: &'a Path,
    state_file: StateFile,
    /// Digests; absent in format version 1.
    sums: Option<Sums>,
}

impl<'a> CheckpointFiles<'a> {
    fn open(directory: &'a Path) -> Result<Self> {
        let path = require(directory, STATE)?;
        // The digest is checked before anything in the file is used, even its version.
        let sums = directory.join(SUMS).exists().then(|| Sums::load(directory)).transpose()?;
        if let Some(sums) = &sums {
            sums.check(STATE, &path, &files::read(&path)?)?;
        }
        let state_file: StateFile = files::read_json(&path, FORMAT_VERSION)?;
        if sums.is_none() && state_file.format_version >= WITH_SUMS {
            require(directory, SUMS)?;
        }
        for (name, &expected) in &state_file.files {
            if ![MODEL, OPTIMIZER, EMA].contains(&name.as_str()) {
                let name = name.escape_debug();
                let rule = format!("`{name}` is not a file of a checkpoint");
                return Err(Error::damaged(&path, rule));
            }
            let path = require(directory, name)?;
            let actual = fs::metadata(&path).map_err(Error::io("read", &path))?.len();
            if actual != expected {
                return Err(Error::Size { path, expected, actual });
            }
        }
        Ok(Self { directory, state_file, sums })
    }

    fn has(&self, name: &str) -> bool {
        self.state_file.files.contains_key(name)
    }

    fn tensors(&self, name: &str, device: &Device) -> Result<NamedTensors> {
        self.checked(name, |path, size, reader| tensors::read(path, size, reader, device))
    }

    /// What `read` makes of the file `name`, given its path, its size and a reader. A wrong digest is an error
    /// before any other, so that nothing of a damaged file is used.
    fn checked<T>(
        &self,
        name: &str,
        read: impl FnOnce(&Path, u64, &mut DigestReader<File>) -> Result<T>,
    ) -> Result<T> {
        let path = require(self.directory, name)?;
        let io = || Error::io("read", &path);
        let file = files::open(&path)?;
        let size = file.metadata().map_err(io())?.len();
        let mut reader = DigestReader::new(file);
        let content = read(&path, size, &mut reader);
        if let Some(sums) = &self.sums {
            sums.check_digest(name, &path, &reader.finish().map_err(io())?)?;
        }
        content
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
    use crate::monitor::early_stopping::Best;
    use crate::storage::tensors::tests::all_bits;

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
            state: CheckpointState {
                best: None,
                step,
                seed: u64::MAX,
                early_stopping: EarlyStoppingState {
                    best: Some(best),
                    reference: Some(0.3),
                    n_without_improvement: 4,
                    n_at_target: 0,
                },
                bad_step: BadStepState { losses: vec![0.1 + 0.2, 3.], ..BadStepState::default() },
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
        for name in [MODEL, OPTIMIZER, EMA, STATE, SUMS] {
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
        for name in [MODEL, OPTIMIZER, EMA, STATE, SUMS] {
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
    fn no_flipped_bit_goes_unnoticed() {
        let directory = written(&example(11));
        for name in [MODEL, OPTIMIZER, EMA, STATE, SUMS] {
            let path = directory.path().join(name);
            let whole = fs::read(&path).unwrap();
            for i in (0..whole.len()).step_by(7).chain([whole.len() - 1]) {
                let mut bytes = whole.clone();
                bytes[i] ^= 1 << (i % 8);
                fs::write(&path, &bytes).unwrap();
                let error = Checkpoint::load(directory.path(), &Device::Cpu).unwrap_err();
                assert!(error.is_damage(), "{name}, byte {i}: {error}");
            }
            fs::write(&path, whole).unwrap();
        }
        verify(directory.path()).unwrap();
    }

    /// Replaces `state.json` and its digest.
    pub(in crate::run) fn rewrite_state(directory: &Path, text: &str) {
        let mut sums = Sums::load(directory).unwrap();
        sums.add(STATE, text.as_bytes());
        fs::write(directory.join(STATE), text).unwrap();
        fs::write(directory.join(SUMS), sums.text()).unwrap();
    }

    #[test]
    fn garbage_and_other_versions_are_refused() {
        let directory = written(&example(11));
        let path = directory.path().join(STATE);
        let text = fs::read_to_string(&path).unwrap();
        rewrite_state(directory.path(), &text[..text.len() / 2]);
        assert!(message(directory.path()).ends_with("is not the JSON that it should be"));
        let newer = text.replace("\"format_version\": 2", "\"format_version\": 9");
        rewrite_state(directory.path(), &newer);
        let error = Checkpoint::load(directory.path(), &Device::Cpu).unwrap_err();
        assert!(!error.is_damage() && error.to_string().contains("format version 9"), "{error}");
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let directory = written(&example(11));
        let text = fs::read_to_string(directory.path().join(STATE)).unwrap();
        for name in ["../../secret", "/etc/passwd", "state.json"] {
            rewrite_state(directory.path(), &text.replace(MODEL, name));
            let rule = format!("state.json` is damaged: `{name}` is not a file of a checkpoint");
            assert!(message(directory.path()).ends_with(&rule), "{}", message(directory.path()));
        }
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

    /// A file of format version 1. It must not be changed, because later versions must read it.
    #[test]
    fn version_1_can_be_read() {
        let directory = written(&example(11));
        fs::remove_file(directory.path().join(SUMS)).unwrap();
        let text = r#"{"format_version":1,"files":{},"state":{"step":11,"seed":17,
            "early_stopping":{"best":{"step":3,"value":0.5},"n_without_improvement":1}}}"#;
        fs::write(directory.path().join(STATE), text).unwrap();
        let state = CheckpointFiles::open(directory.path()).unwrap().state_file.state;
        let best = Some(Best { step: 3, value: 0.5 });
        let early_stopping =
            EarlyStoppingState { best, n_without_improvement: 1, ..Default::default() };
        let bad_step = BadStepState::default();
        assert_eq!(
            state,
            CheckpointState { step: 11, seed: 17, early_stopping, best: None, bad_step }
        );
    }

    #[cfg(unix)]
    #[test]
    fn what_cannot_be_reached_is_no_missing_file() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        let error = Checkpoint::load(&file, &Device::Cpu).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
    }
}
