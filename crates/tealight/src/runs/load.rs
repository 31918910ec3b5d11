//! Loads runs, models and tasks.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use candle_core::Device;
use tealight_train::inference::decision::Decision;
use tealight_train::run::{RunDirectory, Selection, load_weights};
use tealight_train::storage::tensors::NamedTensors;
use tealight_train::task::{AnyTask, Task, TaskContext};
use tealight_train::trained::TrainedModel;
use tealight_train::{Error, Session};

use super::config::LoadedConfig;
use super::origin::Origin;
use crate::args::shared::{Model, Weights};
use crate::terminal::failure::at_its_place;
use crate::terminal::output::log;
use crate::terminal::progress::Preparation;

/// Builds the task of a configuration with its data. Files that a run has `kept`, such as the tokenizer, are read from its
/// directory.
pub(crate) fn task_of(
    LoadedConfig { source, config, origin, test, .. }: &LoadedConfig,
    device: &Device,
    kept: Option<&RunDirectory>,
) -> Result<AnyTask> {
    let at_its_place = |error| match (test, error) {
        // No setting names these data.
        (Some(_), Error::Config(fault)) if is_of_data(&fault.keys) => {
            anyhow!(without_key(&fault.keys, &fault.message).to_owned())
        }
        (_, error) => at_its_place(error, source),
    };
    config.validate().map_err(at_its_place)?;
    let bar = RefCell::new(Preparation::default());
    let context = TaskContext {
        kept: kept.map(RunDirectory::path),
        test: test.as_deref(),
        progress: &|stage, done| bar.borrow_mut().draw(stage, done),
        ..config.task_context(device)
    };
    config.task.build(&context).map_err(|error| match origin {
        Origin::Shipped(shipped) => match shipped.missing_data(config) {
            Some(missing) => anyhow!(missing),
            None => at_its_place(error),
        },
        Origin::File | Origin::Stdin => at_its_place(error),
    })
}

/// A message without the key that it begins with: `key` = …
fn without_key<'a>(keys: &[String], message: &'a str) -> &'a str {
    let rest = |key: &String| message.strip_prefix(&format!("`{key}` = "));
    keys.iter().find_map(rest).unwrap_or(message)
}

/// Whether a fault with these keys is one of the data.
fn is_of_data(keys: &[String]) -> bool {
    let tables = ["task.data", "task.source", "task.corpus"];
    keys.iter().any(|key| tables.iter().any(|table| key.starts_with(table)))
}

/// A trained run and the path of the selected checkpoint.
pub(crate) struct Run {
    pub(crate) directory: RunDirectory,
    pub(crate) loaded: LoadedConfig,
    pub(crate) device: Device,
    checkpoint: PathBuf,
}

impl Run {
    /// Opens a run; `path` may also be that of one of its checkpoints.
    pub(crate) fn open(path: &Path, weights: &Weights) -> Result<Self> {
        let device = weights.device.open()?;
        let directory = RunDirectory::open(path).map_err(|error| in_runs(path, error))?;
        let loaded = LoadedConfig::of_run(&directory, &[])?;
        let asked = weights.checkpoint.or(Selection::named(path, &directory));
        let select = loaded.config.checkpoint.select;
        let (checkpoint, note) = directory.checkpoints().select(asked, select)?;
        if let Some(note) = note {
            log(&format!("{}: {note}", path.display()));
        }
        Ok(Self { directory, loaded, device, checkpoint })
    }

    /// A session with the weights of the checkpoint.
    pub(crate) fn load<T: Task>(&self, task: T) -> Result<Session<T>> {
        self.with_weights(task, &self.weights()?, &self.checkpoint)
    }

    /// The weights of the checkpoint.
    pub(crate) fn weights(&self) -> Result<NamedTensors> {
        let mut weights = load_weights(&self.checkpoint, &self.device)?;
        // Other data are scored with the calibrated probabilities, as `classify` would give them.
        if self.loaded.test.is_some()
            && let Some(decision) = Decision::read(self.directory.path(), &self.checkpoint)?
        {
            decision.fold(&mut weights)?;
        }
        Ok(weights)
    }

    /// A session with `weights`, which were read from `origin`.
    pub(crate) fn with_weights<T: Task>(
        &self,
        task: T,
        weights: &NamedTensors,
        origin: &Path,
    ) -> Result<Session<T>> {
        let session = self.loaded.session(task, &self.device)?;
        session.load_weights(weights).with_context(|| weights_mismatch(origin, &self.directory))?;
        Ok(session)
    }
}

/// Opens a `MODEL` argument, a run or a folder, and the device that it is loaded to. Its notes are logged.
pub(crate) fn open_model(args: &Model) -> Result<(TrainedModel, Device)> {
    let device = args.weights.device.open()?;
    let model = TrainedModel::open(&args.path, args.weights.checkpoint);
    let model = model.map_err(|error| in_runs(&args.path, error))?;
    log_notes(&model);
    Ok((model, device))
}

/// The error that there is nothing at `path`; it names the run of that name, if there is one.
pub(crate) fn in_runs(path: &Path, error: Error) -> anyhow::Error {
    let run = Path::new("runs").join(path);
    if path.exists() || RunDirectory::open(&run).is_err() {
        return error.into();
    }
    anyhow!("there is no `{}`; did you mean `{}`?", path.display(), run.display())
}

/// Logs the notes on a model: which checkpoint was chosen in place of the best one; of a Hugging Face model, what was
/// not loaded, and what an export would lose.
pub(crate) fn log_notes(model: &TrainedModel) {
    for note in &model.notes {
        log(&format!("{}: {note}", model.origin.display()));
    }
}

/// The error message for a checkpoint whose tensors do not match the model.
pub(crate) fn weights_mismatch(checkpoint: &Path, directory: &RunDirectory) -> String {
    let resolved = directory.resolved_path();
    format!("`{}` does not fit `{}`", checkpoint.display(), resolved.display())
}
