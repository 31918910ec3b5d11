//! The settings of `[task] kind = "state_tracking"`.

use std::path::Path;

use tealight_model::names;
use tealight_model::names::Named as _;

use super::group::{Generators, Group, MAX_CYCLIC, MAX_OBJECTS};
use crate::checks::{at_most, positive};
use crate::error::{Error, Result};
use crate::settings::settings;
use crate::task::TaskSettings;
use crate::task::drawn::{MAX_LENGTH, Sizes, check_names};

settings! {
    /// `[task] kind = "state_tracking"`
    pub struct Config {
        /// The group: `Z2` (parity) to `Z64` (cyclic), `S2` to `S5` (all permutations), `A3` to `A5` (the even ones).
        pub group: String = "S3".to_owned(),
        /// The elements that are read.
        pub generators: Generators = Generators::All,
        /// Symbols of an example.
        pub seq_len: usize = 32,
        /// Which positions are asked for their state.
        pub labels: Labels = Labels::Every,
        /// Examples of the validation split.
        pub n_validation: usize = 1000,
        /// Examples for the report, of these settings and of each test.
        pub n_test: usize = 1000,
        /// Other lengths that the report scores, too.
        pub tests: Vec<Test> = Vec::new(),
    }

    /// `[[task.tests]]`: settings that differ from those of `[task]`.
    pub struct Test {
        /// What the report calls it.
        pub name: String = String::new(),
        /// Symbols of an example.
        pub seq_len: Option<usize> = None,
    }
}

names! {
    /// Which positions have a label.
    pub enum Labels {
        /// All.
        "every" => Every,
        /// The last one, as Grazzi et al. train parity.
        "last" => Last,
    }
}

impl Config {
    pub(super) fn sizes(&self) -> Sizes {
        Sizes { n_validation: self.n_validation, n_test: self.n_test }
    }

    pub(super) fn group(&self) -> Result<Group> {
        Group::from_name(&self.group).ok_or_else(|| {
            let message = format!(
                "`task.group` = \"{}\" is none of Z2 to Z{MAX_CYCLIC}, S2 to S{MAX_OBJECTS}, A3 to A{MAX_OBJECTS}",
                self.group.escape_debug()
            );
            Error::config(["task.group"], message)
        })
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        self.sizes().check()?;
        if self.group()?.letters(self.generators).is_none() {
            let message = format!(
                "`task.generators` = \"{}\" and `task.group` = \"{}\": `step` is for cyclic groups, `swaps` and `pair` are \
                 for symmetric ones",
                self.generators.name(),
                self.group
            );
            return Err(Error::config(["task.generators", "task.group"], message));
        }
        check_names(self.tests.iter().map(|test| test.name.as_str()))?;
        let tests = self
            .tests
            .iter()
            .enumerate()
            .filter_map(|(i, test)| Some((format!("task.tests[{i}].seq_len"), test.seq_len?)));
        for (key, seq_len) in [("task.seq_len".to_owned(), self.seq_len)].into_iter().chain(tests) {
            positive(&key, seq_len)?;
            at_most(&key, seq_len as u64, MAX_LENGTH)?;
        }
        Ok(())
    }

    /// A file of examples: its rows are read when the task is built.
    fn test_on(&mut self, _data: &Path) -> Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named() {
        let of = Config::default;
        let far = Test { name: "far".to_owned(), seq_len: Some(0) };
        for (config, rule) in [
            (
                Config { group: "D4".to_owned(), ..of() },
                "`task.group` = \"D4\" is none of Z2 to Z64",
            ),
            (
                Config { generators: Generators::Step, ..of() },
                "`task.generators` = \"step\" and `task.group` = \"S3\"",
            ),
            (Config { seq_len: 0, ..of() }, "`task.seq_len` = 0 must be positive"),
            (Config { tests: vec![far], ..of() }, "`task.tests[0].seq_len` = 0 must be positive"),
            (Config { seq_len: 1 << 20, ..of() }, "`task.seq_len` = 1048576 must be at most"),
        ] {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(rule), "{error}");
        }
    }
}
