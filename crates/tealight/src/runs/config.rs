//! Configurations: read from a file with `--set` overrides, or from the directory of a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::Result;
use serde::Deserialize;
use tealight_train::config::{ConfigSource, Difference, RunConfig};
use tealight_train::pretrained::Pretrained;
use tealight_train::run::RunDirectory;

use crate::terminal::failure::{at_its_place, causes};

/// A configuration file. Settings that it omits are taken from the model of `init_from`, if it names
/// one.
pub(crate) struct LoadedConfig {
    pub(crate) source: ConfigSource,
    pub(crate) config: RunConfig,
    /// The model of `init_from`.
    pub(crate) init_model: Option<Rc<Pretrained>>,
}

/// A cache of `init_from` models, by path.
#[derive(Default)]
pub(crate) struct InitModels(BTreeMap<PathBuf, Rc<Pretrained>>);

impl InitModels {
    fn open(&mut self, path: &Path) -> tealight_train::Result<Rc<Pretrained>> {
        if let Some(model) = self.0.get(path) {
            return Ok(model.clone());
        }
        let model = Rc::new(Pretrained::open(path, None)?);
        self.0.insert(path.to_owned(), model.clone());
        Ok(model)
    }
}

impl LoadedConfig {
    /// Reads the file at `path` with the `--set` overrides.
    pub(crate) fn read(path: &Path, overrides: &[String]) -> Result<Self> {
        Self::from_source(ConfigSource::read(path, overrides)?, &mut InitModels::default())
    }

    /// Opens the model of `init_from` and deserializes the configuration.
    pub(crate) fn from_source(source: ConfigSource, init_models: &mut InitModels) -> Result<Self> {
        #[derive(Deserialize)]
        struct InitFrom {
            #[serde(default)]
            init_from: Option<PathBuf>,
        }
        let InitFrom { init_from } = source.deserialize()?;
        let open = |path: &PathBuf| {
            let failed = |error: anyhow::Error| source.value_error("init_from", &causes(&error));
            init_models.open(path).map_err(|error| failed(error.into()))
        };
        let init_model = init_from.as_ref().map(open).transpose()?;
        let source = match &init_model {
            Some(model) => model.fill_in(source.clone()).map_err(|e| at_its_place(e, &source))?,
            None => source,
        };
        let config = deserialize(&source)?;
        Ok(Self { source, config, init_model })
    }
}

/// The resolved configuration of a run, with all defaults written out, and further `overrides`.
pub(crate) fn resolved_config(
    directory: &RunDirectory,
    overrides: &[String],
) -> Result<(ConfigSource, RunConfig)> {
    // Rejects a manifest of a newer format version, whose configuration could be misread.
    directory.manifest()?;
    let source = ConfigSource::read(&directory.resolved_path(), overrides)?;
    let config = deserialize(&source)?;
    Ok((source, config))
}

fn deserialize(source: &ConfigSource) -> Result<RunConfig> {
    let mut config: RunConfig = source.deserialize()?;
    config.absolute_paths().map_err(|error| at_its_place(error, source))?;
    Ok(config)
}

/// One line per setting that differs; beyond ten, their number.
pub(crate) fn list_differences(differences: &[Difference]) -> String {
    const MAX: usize = 10;
    let mut lines: Vec<String> = differences.iter().take(MAX).map(|d| format!("  {d}")).collect();
    if differences.len() > MAX {
        lines.push(format!("  and {} more", differences.len() - MAX));
    }
    lines.join("\n")
}
