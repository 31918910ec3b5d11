//! The settings of `[task] kind = "recall"`.

use std::path::Path;

use tealight_model::names;

use crate::checks::{MAX_SIZE, at_most, positive};
use crate::error::{Error, Result};
use crate::settings::settings;
use crate::task::TaskSettings;
use crate::task::drawn::{MAX_LENGTH, Sizes, check_names};

settings! {
    /// `[task] kind = "recall"`
    pub struct Config {
        /// Symbols of an example.
        pub seq_len: usize = 32,
        /// The least and the greatest number of pairs in an example.
        pub n_pairs: [usize; 2] = [1, 8],
        /// Symbols of which keys are made.
        pub n_keys: usize = 64,
        /// Symbols of which values are made.
        pub n_values: usize = 64,
        /// Symbols of a key.
        pub key_len: usize = 1,
        /// Symbols of a value.
        pub value_len: usize = 1,
        /// Symbols that fillers are drawn from; 0: fillers are blank.
        pub n_noise: usize = 0,
        /// Noise symbols between the pairs.
        pub n_context_noise: usize = 0,
        /// Where keys are asked for.
        pub gap: Gap = Gap::Uniform,
        /// Of `gap` = "power": slot i, from 1, is as likely as i^(gap_exponent − 1).
        pub gap_exponent: f64 = 0.01,
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
        /// Symbols of an example.
        pub seq_len: Option<usize> = None,
        /// The least and the greatest number of pairs in an example.
        pub n_pairs: Option<[usize; 2]> = None,
    }
}

names! {
    /// Which slots behind the pairs hold a question.
    pub enum Gap {
        /// Each is as likely.
        "uniform" => Uniform,
        /// The first ones are likelier, as in zoology.
        "power" => Power,
    }
}

impl Config {
    pub(super) fn sizes(&self) -> Sizes {
        Sizes { n_validation: self.n_validation, n_test: self.n_test }
    }

    /// The settings of a test.
    pub(super) fn for_test(&self, test: &Test) -> Self {
        Self {
            seq_len: test.seq_len.unwrap_or(self.seq_len),
            n_pairs: test.n_pairs.unwrap_or(self.n_pairs),
            tests: Vec::new(),
            ..self.clone()
        }
    }

    /// Checks these settings, which stand in the TOML table `table`; others than `seq_len` and `n_pairs` in `[task]`.
    fn check(&self, table: &str) -> Result<()> {
        let Self { seq_len, n_pairs: [least, most], n_keys, n_values, key_len, value_len, .. } =
            *self;
        let key = |name: &str| format!("{table}.{name}");
        at_most(&key("seq_len"), seq_len as u64, MAX_LENGTH)?;
        for (name, value) in [
            ("task.n_keys", n_keys),
            ("task.n_values", n_values),
            ("task.key_len", key_len),
            ("task.value_len", value_len),
        ] {
            positive(name, value)?;
            at_most(name, value as u64, MAX_SIZE)?;
        }
        at_most("task.n_noise", self.n_noise as u64, MAX_SIZE)?;
        at_most("task.n_context_noise", self.n_context_noise as u64, MAX_LENGTH)?;
        let keys = n_keys.checked_pow(u32::try_from(key_len).unwrap_or(u32::MAX));
        let Some(keys) = keys.filter(|&keys| keys as u64 <= MAX_SIZE) else {
            let message = format!(
                "`task.n_keys` = {n_keys} and `task.key_len` = {key_len} make more than {MAX_SIZE} keys"
            );
            return Err(Error::config(["task.n_keys", "task.key_len"], message));
        };
        if !(1..=most).contains(&least) || most > keys {
            let name = key("n_pairs");
            let message = format!(
                "`{name}` = [{least}, {most}] must rise from 1 on to at most the number of keys, {keys}"
            );
            return Err(Error::config([name.as_str()], message));
        }
        let needed = 2 * most * (key_len + value_len) + self.n_context_noise;
        if seq_len < needed {
            let (name, pairs) = (key("seq_len"), key("n_pairs"));
            let message = format!(
                "`{name}` = {seq_len} is too short: {most} pairs (`{pairs}`), as many questions and {} symbols of noise \
                 take {needed}",
                self.n_context_noise
            );
            return Err(Error::config([name.as_str(), &pairs], message));
        }
        Ok(())
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        self.sizes().check()?;
        self.check("task")?;
        if self.n_context_noise > 0 && self.n_noise == 0 {
            let message = "`task.n_context_noise` needs symbols to draw from: `task.n_noise` is 0";
            return Err(Error::config(["task.n_context_noise", "task.n_noise"], message));
        }
        if !self.gap_exponent.is_finite() {
            let message = format!("`task.gap_exponent` = {} must be finite", self.gap_exponent);
            return Err(Error::config(["task.gap_exponent"], message));
        }
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
        let message = |config: Config| config.validate().unwrap_err().to_string();
        let of = Config::default;
        let test = Test { name: "far".to_owned(), n_pairs: Some([9, 9]), ..Test::default() };
        for (config, rule) in [
            (Config { n_pairs: [0, 8], ..of() }, "`task.n_pairs` = [0, 8] must rise from 1"),
            (Config { n_pairs: [8, 4], ..of() }, "`task.n_pairs` = [8, 4]"),
            (Config { n_keys: 4, ..of() }, "at most the number of keys, 4"),
            (Config { n_keys: 64, key_len: 9, ..of() }, "make more than"),
            (Config { n_keys: 64, key_len: usize::MAX, ..of() }, "must be at most"),
            (Config { seq_len: 31, ..of() }, "`task.seq_len` = 31 is too short: 8 pairs"),
            (Config { value_len: 0, ..of() }, "`task.value_len` = 0 must be positive"),
            (Config { n_context_noise: 0, n_test: 0, ..of() }, "`task.n_test` = 0"),
            (Config { seq_len: 40, n_context_noise: 8, ..of() }, "needs symbols to draw from"),
            (
                Config { tests: vec![test], ..of() },
                "`task.tests[0].seq_len` = 32 is too short: 9 pairs",
            ),
            (Config { tests: vec![Test::default()], ..of() }, "`task.tests[0].name` is empty"),
        ] {
            let error = message(config);
            assert!(error.contains(rule), "{error}");
        }
    }
}
