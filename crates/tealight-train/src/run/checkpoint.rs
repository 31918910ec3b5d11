//! A checkpoint: everything that a run needs to go on as if it had never stopped.
//!
//! ```text
//! step-000500/model.safetensors       the parameters
//!             optimizer.safetensors   what the optimizer remembers
//!             ema.safetensors         averages of the parameters, where the run keeps them
//!             state.json              the step, the best evaluation, the sizes of the files above
//!             SHA256SUMS              digests of all of them
//! ```
//!
//! Equal checkpoints are equal byte for byte. What is read is held to its size and its digest, so that
//! damage is an error and never a wrong number.
//!
//! | format version | |
//! |---|---|
//! | 1 | no `SHA256SUMS`; no `guard` in the state |
//! | 2 | as above |

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use candle_core::Device;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::monitor::{bad_step, early_stopping};
use crate::storage::digests::{SUMS, Sums};
use crate::storage::files;
use crate::storage::tensors::{self, NamedTensors};

/// The version of `state.json` that is written, and the newest that is read.
pub const FORMAT_VERSION: u64 = 2;

/// The first version with digests.
const WITH_SUMS: u64 = 2;

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
    /// Steps that were passed over or gone back from.
    #[serde(default)]
    pub guard: bad_step::State,
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
        let files = Files::open(directory)?;
        let load = |name: &'static str| files.tensors(name, device);
        Ok(Self {
            model: load(MODEL)?,
            optimizer: load(OPTIMIZER)?,
            ema: files.has(EMA).then(|| load(EMA)).transpose()?,
            state: files.document.state.clone(),
        })
    }

    /// Writes the files into an empty directory, and waits for the disk.
    pub(super) fn write(&self, directory: &Path) -> Result<()> {
        let (mut sizes, mut sums) = (BTreeMap::new(), Sums::default());
        let mut write = |name: &str, bytes: &[u8]| {
            sums.add(name, bytes);
            files::write(&directory.join(name), bytes)
        };
        let all = [(MODEL, Some(&self.model)), (OPTIMIZER, Some(&self.optimizer))];
        for (name, tensors) in all.into_iter().chain([(EMA, self.ema.as_ref())]) {
            let Some(tensors) = tensors else { continue };
            let bytes = tensors::to_bytes(&directory.join(name), tensors)?;
            sizes.insert(name.to_owned(), bytes.len() as u64);
            write(name, &bytes)?;
        }
        let state = self.state.clone();
        let document = Document { format_version: FORMAT_VERSION, files: sizes, state };
        write(STATE, &files::to_json(&directory.join(STATE), &document)?)?;
        files::write(&directory.join(SUMS), sums.text().as_bytes())
    }
}

/// Reads the weights that a checkpoint is used with, and nothing else: the averages of the
/// parameters, where it has them, else the parameters.
pub fn load_weights(directory: &Path, device: &Device) -> Result<NamedTensors> {
    let files = Files::open(directory)?;
    files.tensors(if files.has(EMA) { EMA } else { MODEL }, device)
}

/// Reads every file to its end and says of the first damaged one what is wrong with it.
pub fn verify(directory: &Path) -> Result<()> {
    let files = Files::open(directory)?;
    for name in files.document.files.keys() {
        tensors::views(&directory.join(name), &files.read(name)?)?;
    }
    Ok(())
}

/// Bytes of all files of a checkpoint.
pub fn size(directory: &Path) -> Result<u64> {
    let read = Error::io("read", directory);
    let sizes = fs::read_dir(directory).and_then(|entries| {
        entries.map(|entry| Ok(entry?.metadata()?.len())).sum::<std::io::Result<u64>>()
    });
    sizes.map_err(read)
}

/// What of a checkpoint is not a tensor.
pub(super) fn load_state(directory: &Path) -> Result<State> {
    Ok(Files::open(directory)?.document.state)
}

/// A checkpoint's files, each held to what was written.
struct Files<'a> {
    directory: &'a Path,
    document: Document,
    sums: Option<Sums>,
}

impl<'a> Files<'a> {
    fn open(directory: &'a Path) -> Result<Self> {
        let path = require(directory, STATE)?;
        // Before what the file says is believed, its version included.
        let sums = directory.join(SUMS).exists().then(|| Sums::load(directory)).transpose()?;
        if let Some(sums) = &sums {
            sums.check(STATE, &path, &files::read(&path)?)?;
        }
        let document: Document = files::read_json(&path, FORMAT_VERSION)?;
        if sums.is_none() && document.format_version >= WITH_SUMS {
            require(directory, SUMS)?;
        }
        for (name, &expected) in &document.files {
            if ![MODEL, OPTIMIZER, EMA].contains(&name.as_str()) {
                let name = name.escape_debug();
                return Err(Error::damaged(&path, format!("`{name}` is no file of a checkpoint")));
            }
            let path = require(directory, name)?;
            let actual = fs::metadata(&path).map_err(Error::io("read", &path))?.len();
            if actual != expected {
                return Err(Error::Size { path, expected, actual });
            }
        }
        Ok(Self { directory, document, sums })
    }

    fn has(&self, name: &str) -> bool {
        self.document.files.contains_key(name)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>> {
        let path = require(self.directory, name)?;
        let bytes = files::read(&path)?;
        if let Some(sums) = &self.sums {
            sums.check(name, &path, &bytes)?;
        }
        Ok(bytes)
    }

    fn tensors(&self, name: &str, device: &Device) -> Result<NamedTensors> {
        tensors::from_bytes(&self.directory.join(name), &self.read(name)?, device)
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
            state: State {
                step,
                seed: u64::MAX,
                early_stopping: early_stopping::State {
                    best: Some(best),
                    reference: Some(0.3),
                    n_without_improvement: 4,
                },
                guard: bad_step::State {
                    losses: vec![0.1 + 0.2, 3.],
                    ..bad_step::State::default()
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

    /// `state.json` in place of what was written, as one that was written.
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
            let rule = format!("state.json` is damaged: `{name}` is no file of a checkpoint");
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

    /// Written by format version 1 and never to be changed: later versions must read it.
    #[test]
    fn version_1_can_be_read() {
        let directory = written(&example(11));
        fs::remove_file(directory.path().join(SUMS)).unwrap();
        let text = r#"{"format_version":1,"files":{},"state":{"step":11,"seed":17,
            "early_stopping":{"best":{"step":3,"value":0.5},"n_without_improvement":1}}}"#;
        fs::write(directory.path().join(STATE), text).unwrap();
        let state = Files::open(directory.path()).unwrap().document.state;
        let best = Some(Best { step: 3, value: 0.5 });
        let early_stopping =
            early_stopping::State { best, reference: None, n_without_improvement: 1 };
        let guard = bad_step::State::default();
        assert_eq!(state, State { step: 11, seed: 17, early_stopping, guard });
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
