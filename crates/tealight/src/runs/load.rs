//! Tasks with their data, and trained runs.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use candle_core::Device;
use tealight_train::Session;
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::pretrained::Pretrained;
use tealight_train::run::{RunDirectory, Selection, load_weights};
use tealight_train::storage::tensors::NamedTensors;
use tealight_train::task::{RegisteredTask, Task, TaskContext, TaskKind, TaskVisitor};

use super::config::resolved;
use crate::args::{Model, Used};
use crate::terminal::failure::at_its_place;
use crate::terminal::output::log;
use crate::terminal::progress::Preparation;

/// Builds the task of `config` with its data, and passes it to `command`. The files of the run `kept` are used, such
/// as its tokenizer.
pub(crate) fn with_task(
    config: &RunConfig,
    source: &ConfigSource,
    device: &Device,
    kept: Option<&RunDirectory>,
    command: impl TaskVisitor<Output = Result<()>>,
) -> Result<()> {
    let at_its_place = |error| at_its_place(error, source);
    config.validate().map_err(at_its_place)?;
    let bar = RefCell::new(Preparation::default());
    let context = TaskContext {
        kept: kept.map(RunDirectory::path),
        progress: &|stage, done| bar.borrow_mut().draw(stage, done),
        ..config.task_context(device)
    };
    config.task.build(&context, command).map_err(at_its_place)?
}

/// A run that was trained, and the one of its checkpoints that is meant.
pub(crate) struct Run {
    pub(crate) directory: RunDirectory,
    pub(crate) source: ConfigSource,
    pub(crate) config: RunConfig,
    pub(crate) device: Device,
    checkpoint: PathBuf,
}

impl Run {
    /// Opens a run, or the one of its checkpoints that the path names.
    pub(crate) fn open(path: &Path, used: &Used) -> Result<Self> {
        let device = used.device.open()?;
        let directory = RunDirectory::open(path)?;
        let (source, config) = resolved(&directory, &[])?;
        let named = Selection::named(path, &directory);
        let selection =
            used.checkpoint.or(named).unwrap_or_else(|| config.checkpoint.select.into());
        let checkpoint = directory.checkpoints().find(selection)?;
        Ok(Self { directory, source, config, device, checkpoint })
    }

    /// The task of the run, whose settings these are, to use its model.
    pub(crate) fn task<K: TaskKind>(&self, settings: &K) -> Result<K::Task> {
        let context = self.config.task_context(&self.device);
        let task = settings.reopen(self.directory.path(), &context);
        task.map_err(|error| at_its_place(error, &self.source))
    }

    /// The same for a task of any kind, passed to `command`.
    pub(crate) fn with_task<T>(&self, command: impl TaskVisitor<Output = Result<T>>) -> Result<T> {
        let Self { directory, source, config, device, .. } = self;
        let context = config.task_context(device);
        let result = config.task.reopen(directory.path(), &context, command);
        result.map_err(|error| at_its_place(error, source))?
    }

    /// The model of the run, with the weights of the checkpoint.
    pub(crate) fn load<T: Task>(&self, task: T) -> Result<Session<T>> {
        let weights = load_weights(&self.checkpoint, &self.device)?;
        self.with_weights(task, &weights, &self.checkpoint)
    }

    /// The model of the run, with `weights` that were found in `origin`.
    pub(crate) fn with_weights<T: Task>(
        &self,
        task: T,
        weights: &NamedTensors,
        origin: &Path,
    ) -> Result<Session<T>> {
        let session = Session::new(&self.config, task, &self.device)
            .map_err(|error| at_its_place(error, &self.source))?;
        session.load_weights(weights).with_context(|| misfit(origin, &self.directory))?;
        Ok(session)
    }

    /// What `command` says to a run of another task than the one it is for.
    pub(crate) fn is_not_for(&self, command: &str, task: &str) -> anyhow::Error {
        anyhow!(
            "`tealight {command}` is for runs of the task \"{task}\", and `{}` is one of \"{}\"",
            self.directory.path().display(),
            self.config.task.kind()
        )
    }
}

/// What `MODEL` is, to commands whose task keeps what a folder does not have.
pub(crate) enum Found {
    Run(Box<Run>),
    Folder(Box<Pretrained>, Device),
}

impl Found {
    /// Opens a run, or else a folder of Hugging Face or one that `tealight export` wrote.
    pub(crate) fn open(args: &Model) -> Result<Self> {
        match RunDirectory::open(&args.path) {
            Err(tealight_train::Error::NotARun { .. }) => {
                let device = args.used.device.open()?;
                Ok(Self::Folder(Box::new(model(args)?), device))
            }
            _ => Ok(Self::Run(Box::new(Run::open(&args.path, &args.used)?))),
        }
    }
}

/// The model that is there already, and what a person should know of it said.
pub(crate) fn model(args: &Model) -> Result<Pretrained> {
    let pretrained = Pretrained::open(&args.path, args.used.checkpoint)?;
    note(&pretrained);
    Ok(pretrained)
}

/// A run from a file goes on, and is evaluated, with the data that it was started with.
pub(crate) fn same_data<T: RegisteredTask>(task: &T, directory: &RunDirectory) -> Result<()> {
    Ok(directory.manifest()?.check_data(&task.data_files())?)
}

/// What to say of tensors that a model does not have.
pub(crate) fn misfit(checkpoint: &Path, directory: &RunDirectory) -> String {
    let resolved = directory.resolved_path();
    format!("`{}` does not fit `{}`", checkpoint.display(), resolved.display())
}

/// Says what a person should know of a model from elsewhere: what was not read, what is not kept.
pub(crate) fn note(model: &Pretrained) {
    for note in model.class.iter().flat_map(|class| &class.notes) {
        log(&format!("{}: {note}", model.origin.display()));
    }
}
