//! Pairs from a text file: a source, a tab and a target on each line.

use std::path::{Path, PathBuf};

use tealight_model::names::Named as _;

use super::{Pair, check_length};
use crate::error::{Error, Result};
use crate::inference::symbols::Level;
use crate::settings::settings;

settings! {
    /// `[task.source] kind = "file"`
    pub struct FileConfig {
        /// A pair on each line, in UTF-8; blank lines are skipped. A relative path is relative to the working
        /// directory; a run keeps the absolute one.
        pub path: PathBuf = PathBuf::new(),
        /// What a token is.
        pub level: Level = Level::Characters,
        /// The most tokens of a source or of a target; longer ones are refused. The model is built for so many.
        pub max_len: usize = 100,
    }
}

impl FileConfig {
    pub(in crate::task::seq2seq) fn validate(&self) -> Result<()> {
        check_length("task.source.max_len", self.max_len)
    }
}

/// What a token of a pair is, and how many a side has.
pub(in crate::task::seq2seq) struct Rule {
    pub(in crate::task::seq2seq) level: Level,
    /// The most tokens of a source and of a target.
    pub(in crate::task::seq2seq) max_lens: (usize, usize),
    /// What an error says before that number.
    pub(in crate::task::seq2seq) limit: &'static str,
}

/// The pairs in the `bytes` of a file, in its order; blank lines are skipped. `check` is called with each source and
/// target.
pub(in crate::task::seq2seq) fn read(
    path: &Path,
    bytes: &[u8],
    rule: &Rule,
    check: impl Fn(&str) -> Result<()>,
) -> Result<Vec<Pair>> {
    let text = text(path, bytes)?;
    let mut pairs = Vec::new();
    for (at, line) in text.trim_start_matches('\u{FEFF}').lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let in_line = |rule| Error::line(path, at + 1, rule);
        let pair = parse(line, rule).map_err(in_line)?;
        for side in [&pair.source, &pair.target] {
            check(side).map_err(|error| in_line(error.to_string()))?;
        }
        pairs.push(pair);
    }
    Ok(pairs)
}

fn text<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let before = &bytes[..error.valid_up_to()];
        let line = before.split(|&byte| byte == b'\n').count();
        Error::line(path, line, "this is not UTF-8")
    })
}

fn parse(line: &str, rule: &Rule) -> Result<Pair, String> {
    let Rule { level, max_lens, limit } = rule;
    let Some((source, target)) = line.split_once('\t') else {
        return Err("there is no tab: a line is a source, a tab and a target".to_owned());
    };
    if target.contains('\t') {
        return Err("there is more than one tab: a line is a source, a tab and a target".to_owned());
    }
    let side = |name: &str, text: &str, max_len: usize| {
        let tokens = level.tokens(text.trim());
        match (tokens.len(), level.name()) {
            (0, _) => Err(format!("the {name} is empty")),
            (n, unit) if n > max_len => {
                Err(format!("the {name} has {n} {unit}, and {limit} {max_len}"))
            }
            _ => Ok(level.text(&tokens)),
        }
    };
    Ok(Pair {
        source: side("source", source, max_lens.0)?,
        target: side("target", target, max_lens.1)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(bytes: &[u8], level: Level) -> Result<Vec<(String, String)>, String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let rule = Rule { level, max_lens: (5, 5), limit: "`task.source.max_len` =" };
        let pairs = read(file.path(), bytes, &rule, |_| Ok(())).map_err(|error| {
            error.to_string().replace(&file.path().display().to_string(), "pairs.tsv")
        })?;
        Ok(pairs.into_iter().map(|pair| (pair.source, pair.target)).collect())
    }

    #[test]
    fn a_line_is_a_source_a_tab_and_a_target() {
        let text = "\u{FEFF}ein\tone\r\n\n  \nzwei \t two\n";
        let expected = [("ein", "one"), ("zwei", "two")].map(|(a, b)| (a.to_owned(), b.to_owned()));
        assert_eq!(pairs(text.as_bytes(), Level::Characters).unwrap(), expected);
        let text = "ein sehr langer Satz\ta long sentence";
        assert_eq!(pairs(text.as_bytes(), Level::Words).unwrap().len(), 1);
    }

    #[test]
    fn a_mistake_is_named_with_its_file_and_line() {
        for (text, message) in [
            (&b"a\tb\n\na b\n"[..], "`pairs.tsv`, line 3: there is no tab"),
            (b"a\tb\tc", "`pairs.tsv`, line 1: there is more than one tab"),
            (b"a\tb\n \tb", "`pairs.tsv`, line 2: the source is empty"),
            (b"a\t", "`pairs.tsv`, line 1: the target is empty"),
            (b"a\tbbbbbb", "line 1: the target has 6 characters, and `task.source.max_len` = 5"),
            (b"a\tb\nc\t\xff", "`pairs.tsv`, line 2: this is not UTF-8"),
        ] {
            let error = pairs(text, Level::Characters).unwrap_err();
            assert!(error.contains(message), "{error}");
        }
        let error = pairs(b"a\ta b c d e f", Level::Words).unwrap_err();
        assert!(error.contains("the target has 6 words"), "{error}");
    }
}
