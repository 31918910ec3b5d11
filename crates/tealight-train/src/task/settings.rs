//! Checks and paths that the settings of several tasks share.

use std::path::{Path, PathBuf, absolute};

use crate::checks::share_or_none;
use crate::error::{Error, Result};

/// Makes a path absolute. An empty path stays empty: reading the data reports it.
pub(crate) fn absolute_path(path: &mut PathBuf) -> Result<()> {
    if !path.as_os_str().is_empty() {
        *path = absolute(&*path).map_err(Error::io("find", path))?;
    }
    Ok(())
}

/// Refuses one file for both splits, `task.data.path` and `task.data.validation_path`, also under two paths.
pub(super) fn must_differ(path: &Path, other: &Path) -> Result<()> {
    let canonical = |path: &Path| path.canonicalize().map_err(Error::io("find", path));
    if other.exists() && canonical(path)? == canonical(other)? {
        let (key, of) = ("task.data.validation_path", "task.data.path");
        let message = format!("`{key}` is the file of `{of}`: it must be another");
        return Err(Error::config([key, of], message));
    }
    Ok(())
}

/// Checks the probability mass that a loss spreads over all classes.
pub(super) fn check_label_smoothing(label_smoothing: f64) -> Result<()> {
    share_or_none("task.label_smoothing", label_smoothing)
}
