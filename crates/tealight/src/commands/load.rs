//! A trained model from its run's directory.

use anyhow::Result;
use candle_core::Device;
use tealight_train::Session;
use tealight_train::config::{ConfigSource, RunConfig};
use tealight_train::run::{RunDirectory, Selection};
use tealight_train::task::TaskConfig;
use tealight_train::task::weather::Weather;

use crate::args::Trained;
use crate::failure::at_its_place;

/// A run with the weights of one of its checkpoints.
pub(crate) struct Loaded {
    pub(crate) session: Session<Weather>,
}

impl Loaded {
    /// Opens the run, or the one of its checkpoints that the path names, and loads the weights.
    pub(crate) fn open(args: &Trained) -> Result<Self> {
        let device = args.device.open()?;
        let directory = RunDirectory::open(&args.run)?;
        let (source, config) = resolved(&directory)?;
        let session = session(&config, &device).map_err(|error| at_its_place(error, &source))?;
        let named = args.run.file_name().and_then(|name| name.to_str()?.parse::<Selection>().ok());
        let selection =
            args.checkpoint.or(named).unwrap_or_else(|| config.checkpoint.select.into());
        let checkpoint = directory.checkpoints().load(selection, &device)?;
        session.use_weights(&checkpoint)?;
        Ok(Self { session })
    }
}

/// The configuration that a run was started with, defaults and overrides written out.
pub(crate) fn resolved(directory: &RunDirectory) -> Result<(ConfigSource, RunConfig)> {
    let source = ConfigSource::read(&directory.resolved_path(), &[])?;
    let config = source.deserialize()?;
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
