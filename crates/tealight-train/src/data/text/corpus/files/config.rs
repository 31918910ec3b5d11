//! The settings of `[task.corpus] kind = "files"`.

use std::path::PathBuf;

use tealight_model::names;

use super::paths::absolute;
use crate::checks::share;
use crate::error::{Error, Result};
use crate::settings::settings;

/// The share of the documents that is held out by default.
const VALIDATION: f64 = 0.1;

settings! {
    /// `[task.corpus] kind = "files"`
    pub struct Config {
        /// Files, patterns (`books/*.txt`, `**` for folders at any depth) and folders with all they
        /// contain: `.txt` or `.jsonl`, plain or compressed (`.gz`, `.zst`). Relative paths start in the
        /// current directory; a run stores the absolute ones.
        pub paths: Vec<PathBuf> = Vec::new(),
        /// What a document is in a `.txt` file. In `.jsonl`, each line is a document.
        pub documents: Unit = Unit::Paragraph,
        /// The field of each line of `.jsonl` with the text; `text` by default.
        pub field: Option<String> = None,
        /// The share of the documents that is held out for validation, at random: 0.1 unless one of the two
        /// settings below is set.
        pub validation: Option<f64> = None,
        /// Files that are held out, in the form of `paths`; `paths` may include them.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        pub validation_paths: Vec<PathBuf> = Vec::new(),
        /// The share of the characters at the end of each file that is held out. Requires `documents = "file"`.
        pub validation_tail: Option<f64> = None,
    }
}

names! {
    /// What a document is in a file of text.
    pub enum Unit {
        /// A line that is not blank.
        "line" => Line,
        /// Lines between blank lines, joined by spaces.
        "paragraph" => Paragraph,
        /// A whole file, with its line breaks.
        "file" => File,
    }
}

impl Config {
    /// The field with the text.
    pub(super) fn field(&self) -> &str {
        self.field.as_deref().unwrap_or("text")
    }

    /// The share of the documents that is held out at random.
    pub(in crate::data::text::corpus) fn validation_share(&self) -> f64 {
        let otherwise = !self.validation_paths.is_empty() || self.validation_tail.is_some();
        self.validation.unwrap_or(if otherwise { 0. } else { VALIDATION })
    }

    pub(in crate::data::text::corpus) fn absolute_paths(&mut self) -> Result<()> {
        let paths = self.paths.iter_mut().chain(&mut self.validation_paths);
        // An empty path stays empty: opening the files reports it.
        for path in paths.filter(|path| !path.as_os_str().is_empty()) {
            *path = absolute(path)?;
        }
        Ok(())
    }

    /// Checks the settings, without the files.
    pub(super) fn validate(&self) -> Result<()> {
        let Self { paths, validation, validation_paths, validation_tail, .. } = self;
        if paths.is_empty() {
            let message = "`task.corpus.paths` is missing: it lists the files with the text";
            return Err(Error::config(["task.corpus.paths"], message));
        }
        for (key, paths) in
            [("task.corpus.paths", paths), ("task.corpus.validation_paths", validation_paths)]
        {
            if paths.iter().any(|path| path.as_os_str().is_empty()) {
                return Err(Error::config([key], format!("`{key}` holds an empty path")));
            }
        }
        if self.field.as_deref() == Some("") {
            let message = "`task.corpus.field` is empty: it is the name of a field";
            return Err(Error::config(["task.corpus.field"], message));
        }
        validation.map_or(Ok(()), |value| share("task.corpus.validation", value))?;
        validation_tail.map_or(Ok(()), |value| share("task.corpus.validation_tail", value))?;
        self.validate_holdout()?;
        if validation_tail.is_some() && self.documents != Unit::File {
            let keys = ["task.corpus.validation_tail", "task.corpus.documents"];
            let message = "`task.corpus.validation_tail` needs `task.corpus.documents` = \"file\"";
            return Err(Error::config(keys, message));
        }
        Ok(())
    }

    fn validate_holdout(&self) -> Result<()> {
        let ways = [
            ("task.corpus.validation", self.validation.is_some()),
            ("task.corpus.validation_paths", !self.validation_paths.is_empty()),
            ("task.corpus.validation_tail", self.validation_tail.is_some()),
        ];
        let mut chosen = ways.iter().filter(|(_, is_there)| *is_there).map(|(key, _)| *key);
        if let (Some(first), Some(second)) = (chosen.next(), chosen.next()) {
            let message =
                format!("`{second}` and `{first}` both select what is held out: keep one");
            return Err(Error::config([second, first], message));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::data::text::corpus::files::paths::is_pattern;

    fn message(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config { paths: vec!["a.txt".into()], ..Config::default() };
        change(&mut config);
        config.validate().unwrap_err().to_string()
    }

    #[test]
    fn settings_out_of_range_are_named() {
        assert!(message(|config| config.paths.clear()).contains("`task.corpus.paths` is missing"));
        assert!(message(|config| config.paths.push("".into())).contains("holds an empty path"));
        assert!(
            message(|config| config.field = Some(String::new())).contains("the name of a field")
        );
        for share in [0., 1., -0.1, f64::NAN] {
            let message = message(|config| config.validation = Some(share));
            assert!(message.starts_with("`task.corpus.validation` = "), "{message}");
        }
        let message = message(|config| config.validation_tail = Some(0.1));
        assert!(message.contains("needs `task.corpus.documents` = \"file\""), "{message}");
    }

    #[test]
    fn two_ways_of_holding_out_are_one_too_many() {
        let message = message(|config| {
            config.validation = Some(0.1);
            config.validation_paths.push("b.txt".into());
        });
        let start = "`task.corpus.validation_paths` and `task.corpus.validation` both select";
        assert!(message.starts_with(start), "{message}");
    }

    #[test]
    fn chance_holds_out_a_tenth_unless_said_otherwise() {
        let config = Config::default();
        assert_eq!(config.validation_share(), 0.1);
        assert_eq!(Config { validation: Some(0.2), ..config.clone() }.validation_share(), 0.2);
        assert_eq!(Config { validation_tail: Some(0.2), ..config }.validation_share(), 0.);
    }

    #[test]
    fn relative_paths_and_patterns_become_absolute() {
        let mut config = Config {
            paths: vec!["books/*.txt".into(), "/a/b.txt".into(), "".into()],
            ..Config::default()
        };
        config.absolute_paths().unwrap();
        let here = std::env::current_dir().unwrap();
        assert!(is_pattern(&config.paths[0]));
        assert_eq!(config.paths[0], here.join("books/*.txt"));
        assert_eq!(config.paths[1..], [Path::new("/a/b.txt"), Path::new("")]);
    }
}
