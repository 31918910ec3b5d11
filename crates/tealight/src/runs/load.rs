//! A run from its directory, and the one place that looks at the kind of task.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use candle_core::Device;
use tealight_train::Session;
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::pretrained::Pretrained;
use tealight_train::run::{RunDirectory, Selection, load_weights};
use tealight_train::storage::tensors::NamedTensors;
use tealight_train::task::causal_lm::CausalLm;
use tealight_train::task::classify::Classify;
use tealight_train::task::listops::ListOps;
use tealight_train::task::masked_lm::MaskedLm;
use tealight_train::task::seq2seq::Seq2Seq;
use tealight_train::task::weather::Weather;
use tealight_train::task::{Preparing, Reported, Task, TaskConfig};

use super::config::resolved;
use crate::args::{Model, Used};
use crate::reports::presented::Presented;
use crate::terminal::failure::at_its_place;
use crate::terminal::output::log;
use crate::terminal::progress::Preparation;

/// What a command does, whatever the task.
pub(crate) trait ForAnyTask {
    /// Goes on with the task that the configuration describes, its data drawn or read.
    fn run<T: Presented>(self, task: T) -> Result<()>;
}

/// Draws or reads the data of the task that `config` describes, and goes on with `command`. What a run has
/// `kept` of its data is taken from there.
pub(crate) fn with_task(
    config: &RunConfig,
    source: &ConfigSource,
    device: &Device,
    kept: Option<&RunDirectory>,
    command: impl ForAnyTask,
) -> Result<()> {
    let at_its_place = |error| at_its_place(error, source);
    config.validate().map_err(at_its_place)?;
    let RunConfig { seed, training, .. } = config;
    let mut bar = Preparation::default();
    let mut progress = |stage, done| bar.draw(stage, done);
    let kept = kept.map(RunDirectory::path);
    let preparing = Preparing { kept, progress: Some(&mut progress) };
    match &config.task {
        TaskConfig::MaskedLm(masked_lm) => {
            let task = MaskedLm::new(masked_lm, config, device, preparing);
            command.run(task.map_err(at_its_place)?)
        }
        TaskConfig::CausalLm(causal_lm) => {
            let task = CausalLm::new(causal_lm, config, device, preparing);
            command.run(task.map_err(at_its_place)?)
        }
        TaskConfig::Weather(weather) => {
            let task = Weather::new(weather, *seed, training.batch_size, device);
            command.run(task.map_err(at_its_place)?)
        }
        TaskConfig::Seq2Seq(seq2seq) => {
            let task = Seq2Seq::new(seq2seq, *seed, training.batch_size, device);
            command.run(task.map_err(at_its_place)?)
        }
        TaskConfig::ListOps(listops) => {
            let task = ListOps::new(listops, *seed, training.batch_size, device);
            command.run(task.map_err(at_its_place)?)
        }
        TaskConfig::Classify(classify) => {
            let task = Classify::new(classify, config, device, kept);
            command.run(task.map_err(at_its_place)?)
        }
    }
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
pub(crate) fn same_data<T: Reported>(task: &T, directory: &RunDirectory) -> Result<()> {
    Ok(directory.manifest()?.check_data(&task.data())?)
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
