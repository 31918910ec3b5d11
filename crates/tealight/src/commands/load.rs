//! A trained model from its run's directory.

use std::path::Path;

use anyhow::{Context, Result};
use candle_core::Device;
use tealight_train::Session;
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::run::{RunDirectory, Selection, load_weights, step_of};
use tealight_train::task::TaskConfig;
use tealight_train::task::weather::Weather;

use crate::args::Trained;
use crate::failure::at_its_place;

/// Opens a run, or the one of its checkpoints that the path names, and loads the weights.
pub(crate) fn trained(args: &Trained) -> Result<(Session<Weather>, RunDirectory)> {
    let device = args.device.open()?;
    let directory = RunDirectory::open(&args.run)?;
    let (source, config) = resolved(&directory)?;
    let session = session(&config, &device).map_err(|error| at_its_place(error, &source))?;
    let named = named(&args.run, &directory);
    let selection = args.checkpoint.or(named).unwrap_or_else(|| config.checkpoint.select.into());
    let path = directory.checkpoints().find(selection)?;
    session
        .load_weights(&load_weights(&path, &device)?)
        .with_context(|| misfit(&path, &directory))?;
    Ok((session, directory))
}

/// A run from a file goes on, and is evaluated, with the weather that it was started with.
pub(crate) fn same_data(session: &Session<Weather>, directory: &RunDirectory) -> Result<()> {
    let Session { task, .. } = session;
    Ok(directory.manifest()?.check_data(task.file(), task.fingerprint())?)
}

/// The checkpoint that a path into a run names: a step's directory, a file in it, `latest` or `best`.
fn named(path: &Path, directory: &RunDirectory) -> Option<Selection> {
    if path == directory.path() {
        return None;
    }
    let pointer = || path.file_name()?.to_str()?.parse().ok();
    step_of(path).map(Selection::Step).or_else(pointer)
}

/// What to say of tensors that a model does not have.
pub(crate) fn misfit(checkpoint: &Path, directory: &RunDirectory) -> String {
    let resolved = directory.resolved_path();
    format!("`{}` does not fit `{}`", checkpoint.display(), resolved.display())
}

/// The configuration that a run was started with, defaults and overrides written out.
pub(crate) fn resolved(directory: &RunDirectory) -> Result<(ConfigSource, RunConfig)> {
    // For its version: what a newer Tealight has written, this one may read wrongly.
    directory.manifest()?;
    let source = ConfigSource::read(&directory.resolved_path(), &[])?;
    let mut config: RunConfig = source.deserialize()?;
    config.absolute_paths()?;
    Ok((source, config))
}

/// Everything at step 0.
pub(crate) fn session(
    config: &RunConfig,
    device: &Device,
) -> tealight_train::Result<Session<Weather>> {
    config.validate()?;
    let TaskConfig::Weather(weather) = &config.task;
    let task = Weather::new(weather, config.seed, config.training.batch_size, device)?;
    Session::new(config, task, device)
}
