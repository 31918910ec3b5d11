//! The settings of `[task] kind = "markov_icl"`.

use std::path::Path;

use crate::checks::{at_most, check, positive};
use crate::error::{Error, Result};
use crate::settings::settings;
use crate::task::TaskSettings;
use crate::task::drawn::{MAX_LENGTH, Sizes, check_names};

/// The most contexts of a chain.
const MAX_CONTEXTS: usize = 4096;
/// The largest α, and the most symbols.
const MAX_ALPHA: u64 = 1000;
const MAX_SYMBOLS: u64 = 64;

settings! {
    /// `[task] kind = "markov_icl"`
    pub struct Config {
        /// Symbols of an example.
        pub seq_len: usize = 64,
        /// Symbols that there are.
        pub n_symbols: usize = 4,
        /// Symbols of a context: those that the next one depends on.
        pub order: usize = 1,
        /// How even the rows of a chain are: each is drawn from a Dirichlet distribution with this parameter.
        pub alpha: usize = 1,
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

impl Config {
    pub(super) fn sizes(&self) -> Sizes {
        Sizes { n_validation: self.n_validation, n_test: self.n_test }
    }

    /// The settings of a test.
    pub(super) fn for_test(&self, test: &Test) -> Self {
        let seq_len = test.seq_len.unwrap_or(self.seq_len);
        Self { seq_len, tests: Vec::new(), ..self.clone() }
    }
}

impl TaskSettings for Config {
    fn validate(&self) -> Result<()> {
        self.sizes().check()?;
        let Self { n_symbols, order, alpha, .. } = *self;
        check("task.n_symbols", n_symbols, |n| n >= 2, "must be at least 2")?;
        at_most("task.n_symbols", n_symbols as u64, MAX_SYMBOLS)?;
        positive("task.order", order)?;
        positive("task.alpha", alpha)?;
        at_most("task.alpha", alpha as u64, MAX_ALPHA)?;
        let contexts = n_symbols.checked_pow(u32::try_from(order).unwrap_or(u32::MAX));
        if contexts.is_none_or(|n| n > MAX_CONTEXTS) {
            let message = format!(
                "`task.n_symbols` = {n_symbols} and `task.order` = {order} make more than {MAX_CONTEXTS} contexts"
            );
            return Err(Error::config(["task.n_symbols", "task.order"], message));
        }
        check_names(self.tests.iter().map(|test| test.name.as_str()))?;
        let tests = self
            .tests
            .iter()
            .enumerate()
            .filter_map(|(i, test)| Some((format!("task.tests[{i}].seq_len"), test.seq_len?)));
        for (key, seq_len) in [("task.seq_len".to_owned(), self.seq_len)].into_iter().chain(tests) {
            let rule = "must be at least `task.order`: the first label follows so many symbols";
            check(&key, seq_len, |len| len >= order, rule)?;
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
        let near = Test { name: "near".to_owned(), seq_len: Some(1) };
        for (config, rule) in [
            (Config { n_symbols: 1, ..of() }, "`task.n_symbols` = 1 must be at least 2"),
            (Config { order: 0, ..of() }, "`task.order` = 0 must be positive"),
            (Config { order: 9, ..of() }, "make more than 4096 contexts"),
            (Config { order: usize::MAX, ..of() }, "make more than 4096 contexts"),
            (Config { alpha: 0, ..of() }, "`task.alpha` = 0 must be positive"),
            (
                Config { order: 2, tests: vec![near], ..of() },
                "`task.tests[0].seq_len` = 1 must be at least `task.order`",
            ),
        ] {
            let error = config.validate().unwrap_err().to_string();
            assert!(error.contains(rule), "{error}");
        }
    }
}
