//! Pairs from a text file: a source, a tab and a target on each line.

use std::path::{Path, PathBuf};

use tealight_model::names::Named as _;

use super::{Pair, check_length};
use crate::data::compressed;
use crate::data::survey::is_heading;
use crate::data::table::Broken;
use crate::data::text::corpus::Origin;
use crate::error::Result;
use crate::inference::symbols::Level;
use crate::settings::settings;
use crate::storage::encoding::Decoded;

settings! {
    /// `[task.source] kind = "file"`
    pub struct FileConfig {
        /// A pair on each line, also compressed (`.gz`, `.zst`); blank lines are skipped, and so is a first line of
        /// names, such as `source` and `target`. A relative path is relative to the working directory; a run keeps the
        /// absolute one.
        pub path: PathBuf = PathBuf::new(),
        /// What a token is.
        pub level: Level = Level::Characters,
        /// The most tokens of a source or of a target; longer ones are refused. The model is built for so many.
        pub max_len: usize = 100,
        /// Leave out lines that are no pair, and tell which, instead of ending with an error.
        pub skip_broken: bool = false,
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
    /// Leave out lines that are not such a pair.
    pub(in crate::task::seq2seq) skip_broken: bool,
}

/// The pairs of a file, in its order, and what a user should know about it, a line each; blank lines and a heading are
/// skipped. `check` is called with each source and target.
pub(in crate::task::seq2seq) fn read(
    path: &Path,
    rule: &Rule,
    check: impl Fn(&str) -> Result<()>,
) -> Result<(Vec<Pair>, Vec<String>)> {
    let Decoded { text, encoding, faults } = compressed::decoded("task.source.path", path)?;
    let note = encoding.note().map(|note| format!("`{}`: {note}", path.display()));
    let checked = |line: &str| -> Result<Pair, String> {
        let pair = parse(line, rule)?;
        for side in [&pair.source, &pair.target] {
            check(side).map_err(|error| error.to_string())?;
        }
        Ok(pair)
    };
    let mut broken = Broken::new(path.into());
    let mut pairs = Vec::new();
    let mut lines: Vec<_> =
        text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()).collect();
    let first = lines.first().and_then(|(_, line)| line.split_once('\t'));
    let heading = first.filter(|(source, target)| is_heading(source, target));
    if heading.is_some() {
        lines.remove(0);
    }
    for (at, line) in lines {
        let pair = match faults.get(&(at + 1)) {
            Some(fault) => Err(fault.clone()),
            None => checked(line),
        };
        let origin = Origin { path: path.into(), line: at as u64 + 1 };
        pairs.extend(broken.row(&origin, pair));
    }
    if !rule.skip_broken || pairs.is_empty() {
        broken.check("; `task.source.skip_broken` = true leaves out such lines")?;
    }
    let left_out = broken.note().map(|left_out| format!("`{}`: {left_out}", path.display()));
    let named = heading.map(|(source, target)| {
        let names = [source, target].map(|name| name.trim().to_owned()).join("` and `");
        format!("`{}`: the first line, `{names}`, names the columns and is no pair", path.display())
    });
    Ok((pairs, note.into_iter().chain(named).chain(left_out).collect()))
}

fn parse(line: &str, rule: &Rule) -> Result<Pair, String> {
    let Rule { level, max_lens, limit, .. } = rule;
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
        std::fs::write(file.path(), bytes).unwrap();
        let limit = "`task.source.max_len` =";
        let rule = Rule { level, max_lens: (5, 5), limit, skip_broken: false };
        let (pairs, _) = read(file.path(), &rule, |_| Ok(())).map_err(|error| {
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
    fn a_first_line_of_names_is_no_pair() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "\nSource\tTarget\na\tb\nsource\tinput\n").unwrap();
        let (level, max_lens, limit) = (Level::Characters, (9, 9), "at most");
        let rule = Rule { level, max_lens, limit, skip_broken: false };
        let (pairs, notes) = read(file.path(), &rule, |_| Ok(())).unwrap();
        let sources: Vec<_> = pairs.iter().map(|pair| &*pair.source).collect();
        assert_eq!(sources, ["a", "source"]);
        assert!(notes[0].contains("the first line, `Source` and `Target`, names"), "{notes:?}");
    }

    #[test]
    fn lines_that_are_no_pair_are_counted_or_left_out() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a\tb\nc\nd\te\n\tf\ng\n").unwrap();
        let read = |skip_broken| {
            let (level, max_lens) = (Level::Characters, (5, 5));
            read(file.path(), &Rule { level, max_lens, limit: "at most", skip_broken }, |_| Ok(()))
        };
        let (pairs, notes) = read(true).unwrap();
        assert_eq!(pairs.len(), 2);
        let left_out = "3 broken rows are left out: line 2 (also 5): there is no tab";
        assert!(notes[0].contains(left_out), "{notes:?}");
        let error = read(false).unwrap_err().to_string();
        assert!(
            error.contains("line 2: there is no tab") && error.contains("3 of 5 rows"),
            "{error}"
        );
        assert!(error.contains("line 4: the source is empty"), "{error}");
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
