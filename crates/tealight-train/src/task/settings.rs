//! Checks and paths that the settings of several tasks share.

use std::path::{PathBuf, absolute};

use crate::checks::check;
use crate::error::{Error, Result};

/// Makes a path absolute. An empty path stays empty: reading the data reports it.
pub(crate) fn absolute_path(path: &mut PathBuf) -> Result<()> {
    if !path.as_os_str().is_empty() {
        *path = absolute(&*path).map_err(Error::io("find", path))?;
    }
    Ok(())
}

/// Checks the probability mass that a loss spreads over all classes.
pub(super) fn check_label_smoothing(label_smoothing: f64) -> Result<()> {
    let is_valid = |share| (0. ..1.).contains(&share);
    check("task.label_smoothing", label_smoothing, is_valid, "must be at least 0 and less than 1")
}
