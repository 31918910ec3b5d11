//! Errors about settings and files of the weather.

use std::io;
use std::path::PathBuf;

use super::day::ParseError;
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
    /// A character does not denote weather.
    #[error("`{}`, {fault}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// The place and the character. Not a `source`: the message includes it.
        fault: ParseError,
    },
    /// A line with too few days.
    #[error(
        "`{}`, line {line}: {n_days} days, but a sequence needs at least {min_days} (the window and the next day)",
        path.display()
    )]
    TooShort {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The number of days on it.
        n_days: usize,
        /// The required number of days.
        min_days: usize,
    },
    /// A file has no sequence.
    #[error(
        "`{}` has no sequence: a line of at least {min_days} days (the window and the next day) is needed",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
        /// The required number of days of a line.
        min_days: usize,
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
            _ => return Self::Weather(Box::new(error)),
        };
        let table = if key == "window" { "task" } else { "task.source" };
        let row = key.find('[').unwrap_or(key.len());
        let path = format!("{table}.{}", &key[..row]);
        Self::config([&path], format!("`{table}.{key}` = {value}: {rule}"))
    }
}
