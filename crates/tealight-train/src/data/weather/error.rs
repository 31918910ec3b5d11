//! Errors about settings and files of the weather.

use std::io;
use std::path::PathBuf;

use crate::error;

/// A setting or a file is invalid.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value breaks the rule of its key.
    #[error("`{key}` = {value}: {rule}")]
    Setting {
        /// The key, with the row for a table.
        key: String,
        /// The value.
        value: String,
        /// The broken rule.
        rule: &'static str,
    },
    /// The file cannot be read.
    #[error("`{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The content of the file is not sequences of weather.
    #[error("`{}`{fault}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The place in the file, if any, and what is wrong.
        fault: String,
    },
}

impl Error {
    /// The value of `key` breaks its rule.
    pub(super) fn setting(
        key: impl Into<String>,
        value: impl std::fmt::Debug,
        rule: &'static str,
    ) -> Self {
        Self::Setting { key: key.into(), value: format!("{value:?}"), rule }
    }
}

impl From<Error> for error::Error {
    fn from(error: Error) -> Self {
        let (key, value, rule) = match error {
            Error::Setting { key, value, rule } => (key, value, rule),
            Error::Read { path, source } => {
                let message = format!("`{}` cannot be read: {source}", path.display());
                return Self::config(["task.source.path"], message);
            }
            Error::Content { .. } => return Self::Weather(Box::new(error)),
        };
        let table = if key == "window" { "task" } else { "task.source" };
        let row = key.find('[').unwrap_or(key.len());
        let path = format!("{table}.{}", &key[..row]);
        Self::config([&path], format!("`{table}.{key}` = {value}: {rule}"))
    }
}
