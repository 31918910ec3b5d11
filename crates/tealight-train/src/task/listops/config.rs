//! The settings of `[task] kind = "listops"`.

use std::path::Path;

use tealight_model::models::forecaster::ReadOut;

use crate::checks::{at_most, check};
use crate::error::{Error, Result};
use crate::settings::settings;
use crate::task::TaskSettings;

/// The longest expression: the time of attention grows with its square.
const MAX_LENGTH: u64 = 1 << 16;
/// The most expressions of a part.
const MAX_EXPRESSIONS: u64 = 10_000_000;
/// The most levels of a tree, and the most arguments of an operation.
const MAX_TREE: u64 = 1000;

settings! {
    /// `[task] kind = "listops"`. The defaults are the data of the Long Range Arena.
    pub struct Config {
        /// Expressions to train on.
        pub n_train: usize = 96_000,
        /// Expressions of the validation split.
        pub n_validation: usize = 2000,
        /// Expressions for the report.
        pub n_test: usize = 2000,
        /// Levels of a tree, digits included.
        pub max_depth: usize = 10,
        /// Arguments of an operation: 2 to this many.
        pub max_args: usize = 10,
        /// Every expression has more tokens than this.
        pub min_length: usize = 500,
        /// Every expression has fewer tokens than this.
        pub max_length: usize = 2000,
        /// Which positions the value is predicted from: `mean`, `cls` or `last`.
        pub read_out: ReadOut = ReadOut::Mean,
    }
}

impl TaskSettings for Config {
    /// A file of expressions: its rows are read when the task is built.
    fn test_on(&mut self, _data: &Path) -> Result<()> {
        Ok(())
    }

    fn validate(&self) -> Result<()> {
        self.check_sizes()?;
        if self.read_out == ReadOut::EveryPosition {
            let message = "`task.read_out` = \"every_position\": an expression has one value; the \
                           read-outs are `mean`, `cls` and `last`";
            return Err(Error::config(["task.read_out"], message));
        }
        let Self { min_length, max_length, .. } = *self;
        if max_length < min_length + 2 {
            let message = format!(
                "`task.max_length` = {max_length} leaves no length above `task.min_length` = \
                 {min_length}: it must be at least {}",
                min_length + 2
            );
            return Err(Error::config(["task.max_length", "task.min_length"], message));
        }
        Ok(())
    }
}

impl Config {
    fn check_sizes(&self) -> Result<()> {
        let size = |key: &str, value: usize, least: usize, most: u64| {
            check(key, value, |value| value >= least, &format!("must be at least {least}"))?;
            at_most(key, value as u64, most)
        };
        size("task.n_train", self.n_train, 1, MAX_EXPRESSIONS)?;
        size("task.n_validation", self.n_validation, 1, MAX_EXPRESSIONS)?;
        size("task.n_test", self.n_test, 1, MAX_EXPRESSIONS)?;
        size("task.max_depth", self.max_depth, 2, MAX_TREE)?;
        size("task.max_args", self.max_args, 2, MAX_TREE)?;
        // The shortest operation has four tokens.
        size("task.min_length", self.min_length, 3, MAX_LENGTH)?;
        size("task.max_length", self.max_length, 5, MAX_LENGTH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_out_of_range_are_named() {
        let message = |config: Config| config.validate().unwrap_err().to_string();
        let of = || Config::default();
        assert_eq!(message(Config { n_test: 0, ..of() }), "`task.n_test` = 0 must be at least 1");
        assert!(message(Config { max_args: 1, ..of() }).starts_with("`task.max_args` = 1"));
        assert!(message(Config { max_depth: 1, ..of() }).starts_with("`task.max_depth` = 1"));
        assert!(message(Config { min_length: 2, ..of() }).starts_with("`task.min_length` = 2"));
        assert!(message(Config { max_length: 501, ..of() }).contains("at least 502"));
        let every = message(Config { read_out: ReadOut::EveryPosition, ..of() });
        assert!(every.contains("`mean`, `cls` and `last`"), "{every}");
    }
}
