//! Configurations: from a file with `--set`, from a run, from the model of `init_from`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::Result;
use serde::Deserialize;
use tealight_train::config::{ConfigSource, Difference, RunConfig};
use tealight_train::pretrained::Pretrained;
use tealight_train::run::RunDirectory;

use crate::terminal::failure::{at_its_place, causes};

/// A file of settings as it was given, what it leaves out taken from the model that it begins with.
pub(crate) struct Given {
    pub(crate) source: ConfigSource,
    pub(crate) config: RunConfig,
    pub(crate) begins_with: Option<Rc<Pretrained>>,
}

/// Models that settings begin with, each read once.
#[derive(Default)]
pub(crate) struct Beginnings(BTreeMap<PathBuf, Rc<Pretrained>>);

impl Beginnings {
    fn open(&mut self, folder: &Path) -> tealight_train::Result<Rc<Pretrained>> {
        if let Some(model) = self.0.get(folder) {
            return Ok(model.clone());
        }
        let model = Rc::new(Pretrained::open(folder, None)?);
        self.0.insert(folder.to_owned(), model.clone());
        Ok(model)
    }
}

impl Given {
    /// Reads the file at `path` with the changes of the command line.
    pub(crate) fn read(path: &Path, overrides: &[String]) -> Result<Self> {
        Self::complete(ConfigSource::read(path, overrides)?, &mut Beginnings::default())
    }

    /// Completes settings that are read already.
    pub(crate) fn complete(source: ConfigSource, beginnings: &mut Beginnings) -> Result<Self> {
        #[derive(Deserialize)]
        struct Beginning {
            #[serde(default)]
            init_from: Option<PathBuf>,
        }
        let Beginning { init_from } = source.deserialize()?;
        let open = |folder: &PathBuf| {
            let failed = |error: anyhow::Error| source.value_error("init_from", &causes(&error));
            beginnings.open(folder).map_err(|error| failed(error.into()))
        };
        let begins_with = init_from.as_ref().map(open).transpose()?;
        let source = match &begins_with {
            Some(model) => model.fill_in(source.clone()).map_err(|e| at_its_place(e, &source))?,
            None => source,
        };
        let mut config: RunConfig = source.deserialize()?;
        config.absolute_paths().map_err(|error| at_its_place(error, &source))?;
        Ok(Self { source, config, begins_with })
    }
}

/// More differences than these are counted, not listed.
const MAX_DIFFERENCES: usize = 10;

/// A line for each setting that differs.
pub(crate) fn listed(differences: &[Difference]) -> String {
    let mut lines: Vec<String> = differences.iter().map(|one| format!("  {one}")).collect();
    if lines.len() > MAX_DIFFERENCES {
        lines.truncate(MAX_DIFFERENCES);
        lines.push(format!("  and {} more", differences.len() - MAX_DIFFERENCES));
    }
    lines.join("\n")
}

/// The configuration that a run was started with, defaults and overrides written out, with further
/// `overrides`.
pub(crate) fn resolved(
    directory: &RunDirectory,
    overrides: &[String],
) -> Result<(ConfigSource, RunConfig)> {
    // For its version: what a newer Tealight has written, this one may read wrongly.
    directory.manifest()?;
    let source = ConfigSource::read(&directory.resolved_path(), overrides)?;
    let mut config: RunConfig = source.deserialize()?;
    config.absolute_paths().map_err(|error| at_its_place(error, &source))?;
    Ok((source, config))
}
