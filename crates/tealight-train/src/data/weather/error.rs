//! What can be wrong with a setting or a file.

use std::io;
use std::path::PathBuf;

use super::sky::ParseError;
use crate::error;

/// A setting or a file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A value breaks the rule of its key.
    #[error("`{key}` = {value}: {rule}")]
    Setting {
        /// The key, with the row where there is one.
        key: String,
        /// The value as given.
        value: String,
        /// What would be accepted.
        rule: &'static str,
    },
    /// The file cannot be read.
    #[error("`{}` cannot be read", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A character that is no weather.
    #[error("`{}`, {fault}", path.display())]
    Parse {
        /// The file.
        path: PathBuf,
        /// Where and which. Not a `source`: the message says it already.
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
        /// The days on it.
        n_days: usize,
        /// The days it needs.
        min_days: usize,
    },
    /// A file without a single sequence.
    #[error(
        "`{}` holds no sequence: a line of at least {min_days} days (the window and the next day) is needed",
        path.display()
    )]
    Empty {
        /// The file.
        path: PathBuf,
        /// The days a line needs.
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
