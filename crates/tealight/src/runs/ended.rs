//! `ended.json`: why the last process that trained a run ended before the run was finished.
//!
//! It is removed when the run is resumed, so a finished run has none. A process that is killed leaves none either.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tealight_train::storage::files::{read_json, replace, to_json};

/// The format version that is written, and the newest that can be read.
const FORMAT_VERSION: u64 = 1;
const FILE: &str = "ended.json";
/// The reason of a run whose loss or gradient was not usable: it ends so again.
pub(crate) const DIVERGED: &str = "diverged";
/// The reason of a run with a score that no model can have.
pub(crate) const ABOVE_LIMIT: &str = "above_limit";

/// The content of `ended.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Ended {
    /// The format version of the file.
    format_version: u64,
    /// The signal, the limit or the end of `ablate` that stopped the run; [`DIVERGED`], [`ABOVE_LIMIT`] or `error`.
    pub(crate) reason: String,
    /// Number of updates done.
    pub(crate) step: u64,
    /// The error that ended the run.
    pub(crate) error: Option<String>,
}

impl Ended {
    pub(crate) fn new(reason: &str, step: u64, error: Option<&str>) -> Self {
        let (reason, error) = (reason.to_owned(), error.map(str::to_owned));
        Self { format_version: FORMAT_VERSION, reason, step, error }
    }

    /// Reads the file of a run; `None` if there is none.
    pub(crate) fn read(run: &Path) -> Result<Option<Self>> {
        let path = run.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        Ok(Some(read_json(&path, FORMAT_VERSION)?))
    }

    /// Writes the file of a run.
    pub(crate) fn write(&self, run: &Path) -> Result<()> {
        let path = run.join(FILE);
        Ok(replace(&path, &to_json(&path, self)?)?)
    }

    /// Removes the file of a run that is resumed.
    pub(crate) fn remove(run: &Path) -> Result<()> {
        let path = run.join(FILE);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove `{}`", path.display()))
            }
            _ => Ok(()),
        }
    }
}
