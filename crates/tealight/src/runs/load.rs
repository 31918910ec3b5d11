//! Loads runs, models and tasks.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use candle_core::Device;
use tealight_train::Session;
use tealight_train::pretrained::Pretrained;
use tealight_train::run::{RunDirectory, Selection, load_weights};
use tealight_train::storage::tensors::NamedTensors;
use tealight_train::task::{Task, TaskContext, TaskKind, TaskVisitor};

use super::config::LoadedConfig;
use super::origin::Origin;
use crate::args::shared::{Model, Weights};
use crate::terminal::failure::at_its_place;
use crate::terminal::output::log;
use crate::terminal::progress::Preparation;

/// Builds the task of a configuration, loads its data, and passes it to `command`. Files that a run has `kept`, such as
/// the tokenizer, are read from its directory.
pub(crate) fn with_task<R>(
    LoadedConfig { source, config, origin, .. }: &LoadedConfig,
    device: &Device,
    kept: Option<&RunDirectory>,
    command: impl TaskVisitor<Output = Result<R>>,
) -> Result<R> {
    let at_its_place = |error| at_its_place(error, source);
    config.validate().map_err(at_its_place)?;
    let bar = RefCell::new(Preparation::default());
    let context = TaskContext {
        kept: kept.map(RunDirectory::path),
        progress: &|stage, done| bar.borrow_mut().draw(stage, done),
        ..config.task_context(device)
    };
    config.task.build(&context, command).map_err(|error| match origin {
        Origin::Shipped(shipped) => match shipped.missing_data(config) {
            Some(missing) => anyhow!(missing),
            None => at_its_place(error),
        },
        Origin::File | Origin::Stdin => at_its_place(error),
    })?
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
        let directory = RunDirectory::open(path)?;
        let loaded = LoadedConfig::of_run(&directory, &[])?;
        let asked = weights.checkpoint.or(Selection::named(path, &directory));
        let select = loaded.config.checkpoint.select;
        let (checkpoint, note) = directory.checkpoints().select(asked, select)?;
        if let Some(note) = note {
            log(&format!("{}: {note}", path.display()));
        }
        Ok(Self { directory, loaded, device, checkpoint })
    }

    /// The task of the run with these settings, without its training data.
    pub(crate) fn task<K: TaskKind>(&self, settings: &K) -> Result<K::Task> {
        let task = settings.build(&self.inference_context());
        task.map_err(|error| at_its_place(error, &self.loaded.source))
    }

    /// Passes the task of the run, without its training data, to `command`.
    pub(crate) fn with_task<T>(&self, command: impl TaskVisitor<Output = Result<T>>) -> Result<T> {
        let LoadedConfig { source, config, .. } = &self.loaded;
        let result = config.task.build(&self.inference_context(), command);
        result.map_err(|error| at_its_place(error, source))?
    }

    fn inference_context(&self) -> TaskContext<'_> {
        let context = self.loaded.config.task_context(&self.device);
        TaskContext { kept: Some(self.directory.path()), inference_only: true, ..context }
    }

    /// A session with the weights of the checkpoint.
    pub(crate) fn load<T: Task>(&self, task: T) -> Result<Session<T>> {
        let weights = load_weights(&self.checkpoint, &self.device)?;
        self.with_weights(task, &weights, &self.checkpoint)
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

    /// The error of a `command` that supports only runs of these tasks.
    pub(crate) fn is_not_for(&self, command: &str, tasks: &[&str]) -> anyhow::Error {
        let tasks = tasks.join("\" or \"");
        anyhow!(
            "`tealight {command}` requires a run of the task \"{tasks}\", but `{}` is a run of \"{}\"",
            self.directory.path().display(),
            self.loaded.config.task.kind()
        )
    }
}

/// A `MODEL` argument: a run, or a folder with a model.
pub(crate) enum RunOrFolder {
    Run(Box<Run>),
    Folder(Box<Pretrained>, Device),
}

impl RunOrFolder {
    /// Opens a run, or a folder written by `tealight export` or Hugging Face, which may be in its cache.
    pub(crate) fn open(args: &Model) -> Result<Self> {
        let is_a_run = || {
            !matches!(RunDirectory::open(&args.path), Err(tealight_train::Error::NotARun { .. }))
        };
        if args.path.exists() && is_a_run() {
            return Ok(Self::Run(Box::new(Run::open(&args.path, &args.weights)?)));
        }
        let (model, device) = open_pretrained(args)?;
        Ok(Self::Folder(Box::new(model), device))
    }
}

/// Opens a run or folder without its task, and the device that it is loaded to.
pub(crate) fn open_pretrained(args: &Model) -> Result<(Pretrained, Device)> {
    let device = args.weights.device.open()?;
    let model = Pretrained::open(&args.path, args.weights.checkpoint)?;
    log_notes(&model);
    Ok((model, device))
}

/// Logs the notes on a model: which checkpoint was chosen in place of the best one; of a Hugging Face model, what was
/// not loaded, and what an export would lose.
pub(crate) fn log_notes(model: &Pretrained) {
    let of_hf = model.hf.iter().flat_map(|hf| &hf.notes);
    for note in model.checkpoint_note.iter().chain(of_hf) {
        log(&format!("{}: {note}", model.origin.display()));
    }
}

/// The error message for a checkpoint whose tensors do not match the model.
pub(crate) fn weights_mismatch(checkpoint: &Path, directory: &RunDirectory) -> String {
    let resolved = directory.resolved_path();
    format!("`{}` does not fit `{}`", checkpoint.display(), resolved.display())
}
