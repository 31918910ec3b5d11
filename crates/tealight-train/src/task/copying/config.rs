//! The settings of `[task] kind = "copying"`.

use std::path::Path;

use tealight_model::names;

use crate::checks::{MAX_SIZE, at_most, positive};
use crate::error::{Error, Result};
use crate::settings::settings;
use crate::task::TaskSettings;
use crate::task::drawn::{MAX_LENGTH, Sizes, check_names};

settings! {
    /// `[task] kind = "copying"`
    pub struct Config {
        /// What is written.
        pub mode: Mode = Mode::Copy,
        /// The least and the greatest number of data symbols in an example.
        pub length: [usize; 2] = [1, 16],
        /// Symbols that the data are drawn from.
        pub n_symbols: usize = 16,
        /// Of `mode` = "selective": places, of which some hold data and the others are blank.
        pub n_places: usize = 0,
        /// Whether no symbol occurs twice in the data.
        pub distinct: bool = false,
        /// Examples of the validation split.
        pub n_validation: usize = 1000,
        /// Examples for the report, of these settings and of each test.
        pub n_test: usize = 1000,
        /// Other settings that the report scores, too.
        pub tests: Vec<Test> = Vec::new(),
    }

    /// `[[task.tests]]`: settings that differ from those of `[task]`.
    pub struct Test {
        /// What the report calls it.
        pub name: String = String::new(),
        /// The least and the greatest number of data symbols in an example.
        pub length: Option<[usize; 2]> = None,
        /// Places of data and blanks.
        pub n_places: Option<usize> = None,
    }
}

names! {
    /// What is written behind the input.
    pub enum Mode {
        /// The data.
        "copy" => Copy,
        /// The data, the last symbol first.
        "reverse" => Reverse,
        /// The data, which stand among blanks.
        "selective" => Selective,
    }
}

impl Config {
    pub(super) fn sizes(&self) -> Sizes {
        Sizes { n_validation: self.n_validation, n_test: self.n_test }
    }

    /// Symbols of an example.
    pub(super) fn seq_len(&self) -> usize {
        let most = self.length[1];
        let before = if self.mode == Mode::Selective { self.n_places } else { most };
        before.saturating_add(most)
    }

    /// The settings of a test.
    pub(super) fn for_test(&self, test: &Test) -> Self {
        Self {
            length: test.length.unwrap_or(self.length),
            n_places: test.n_places.unwrap_or(self.n_places),
            tests: Vec::new(),
            ..self.clone()
        }
    }

    /// Checks these settings, of which `length` and `n_places` stand in the TOML table `table`.
    fn check(&self, table: &str) -> Result<()> {
        let Self { mode, length: [least, most], n_symbols, n_places, distinct, .. } = *self;
        let (length, places) = (format!("{table}.length"), format!("{table}.n_places"));
        if !(1..=most).contains(&least) {
            let message = format!("`{length}` = [{least}, {most}] must rise from 1 on");
            return Err(Error::config([length.as_str()], message));
        }
        at_most(&length, self.seq_len() as u64, MAX_LENGTH)?;
        if distinct && most > n_symbols {
            let message = format!(
                "`{length}` = [{least}, {most}] needs as many different symbols (`task.distinct`), and `task.n_symbols` is \
                 {n_symbols}"
            );
            return Err(Error::config([length.as_str(), "task.n_symbols"], message));
        }
        let needs_places = mode == Mode::Selective;
        if needs_places && n_places < most {
            let message =
                format!("`{places}` = {n_places} has no room for {most} symbols (`{length}`)");
            return Err(Error::config([places.as_str(), &length], message));
        }
        if !needs_places && n_places > 0 {
            let message = format!(
                "`{places}` = {n_places} has no meaning unless `task.mode` = \"selective\""
            );
            return Err(Error::config([places.as_str(), "task.mode"], message));
        }
        Ok(())
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        self.sizes().check()?;
        positive("task.n_symbols", self.n_symbols)?;
        at_most("task.n_symbols", self.n_symbols as u64, MAX_SIZE)?;
        self.check("task")?;
        check_names(self.tests.iter().map(|test| test.name.as_str()))?;
        let mut tests = self.tests.iter().enumerate();
        tests.try_for_each(|(i, test)| self.for_test(test).check(&format!("task.tests[{i}]")))
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
        let far = Test { name: "far".to_owned(), n_places: Some(9), ..Test::default() };
        for (config, rule) in [
            (Config { length: [0, 4], ..of() }, "`task.length` = [0, 4] must rise from 1"),
            (Config { length: [1, 40_000], ..of() }, "must be at most"),
            (Config { length: [1, 17], distinct: true, ..of() }, "`task.n_symbols` is 16"),
            (Config { mode: Mode::Selective, n_places: 15, ..of() }, "has no room for 16 symbols"),
            (Config { n_places: 3, ..of() }, "has no meaning unless `task.mode` = \"selective\""),
            (Config { tests: vec![far], ..of() }, "`task.tests[0].n_places` = 9 has no meaning"),
            (Config { n_symbols: 0, ..of() }, "`task.n_symbols` = 0 must be positive"),
        ] {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(rule), "{error}");
        }
    }
}
