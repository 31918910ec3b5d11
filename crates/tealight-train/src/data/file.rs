//! The files of the data, and the check that they have not changed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Further differences are counted, not listed.
const MAX_LISTED: usize = 5;

/// A file with data of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFile {
    /// The setting with its path, such as `task.corpus.paths`.
    pub key: String,
    /// Its path; for a file in the run directory, its name.
    pub path: PathBuf,
    /// The hash of its content in hexadecimal digits.
    pub fingerprint: String,
}

impl DataFile {
    /// For a file whose content has the hash `fingerprint`.
    pub fn new(key: &str, path: &Path, fingerprint: u64) -> Self {
        let (key, path) = (key.to_owned(), path.to_owned());
        Self { key, path, fingerprint: format!("{fingerprint:016x}") }
    }

    fn location(&self) -> (&str, &Path) {
        (&self.key, &self.path)
    }

    fn same_content(&self, other: &Self) -> bool {
        (&self.key, &self.fingerprint) == (&other.key, &other.fingerprint)
    }
}

/// Checks that `now` has the same contents in the same order as `then`; the paths may differ.
pub(crate) fn check_unchanged(then: &[DataFile], now: &[DataFile]) -> Result<()> {
    if then.len() == now.len() && then.iter().zip(now).all(|(then, now)| then.same_content(now)) {
        return Ok(());
    }
    let (before, after) = (by_location(then), by_location(now));
    let change = |file: &DataFile| match before.get(&file.location()) {
        Some(other) if other.same_content(file) => None,
        Some(_) => Some("has changed"),
        None => Some("has been added"),
    };
    let is_gone = |file: &&DataFile| !after.contains_key(&file.location());
    let changed = now.iter().filter_map(|file| Some((file, change(file)?)));
    let gone = then.iter().filter(is_gone).map(|file| (file, "is gone"));
    Err(difference(&changed.chain(gone).collect::<Vec<_>>()))
}

fn by_location(files: &[DataFile]) -> BTreeMap<(&str, &Path), &DataFile> {
    files.iter().map(|file| (file.location(), file)).collect()
}

/// The error that lists files with how they changed.
fn difference(files: &[(&DataFile, &str)]) -> Error {
    let line = |(DataFile { key, path, .. }, change): &(&DataFile, &str)| {
        format!("`{key}`: `{}` {change} since the run began", path.display())
    };
    if files.is_empty() {
        return Error::config(["task"], "its files come in another order than when the run began");
    }
    let mut lines: Vec<String> = files.iter().take(MAX_LISTED).map(line).collect();
    if files.len() > MAX_LISTED {
        lines.push(format!("and {} more", files.len() - MAX_LISTED));
    }
    let key = files.first().map_or("task", |(file, _)| file.key.as_str());
    Error::config([key], lines.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(path: &str, fingerprint: u64) -> DataFile {
        DataFile::new("task.corpus.paths", Path::new(path), fingerprint)
    }

    #[test]
    fn the_files_that_differ_are_named_and_no_others() {
        let then = [file("a.txt", 3), file("b.txt", 5), file("c.txt", 7)];
        let now = [file("a.txt", 3), file("b.txt", 11), file("d.txt", 7)];
        let message = check_unchanged(&then, &now).unwrap_err().to_string();
        let expected = "`task.corpus.paths`: `b.txt` has changed since the run began; \
                        `task.corpus.paths`: `d.txt` has been added since the run began; \
                        `task.corpus.paths`: `c.txt` is gone since the run began";
        assert_eq!(message, expected);
        let many: Vec<DataFile> = (0..9).map(|n| file(&format!("{n}.txt"), n)).collect();
        let message = check_unchanged(&[], &many).unwrap_err().to_string();
        assert!(message.ends_with("; and 4 more"), "{message}");
        let message = check_unchanged(&[], &many[..MAX_LISTED]).unwrap_err().to_string();
        assert!(message.ends_with("`4.txt` has been added since the run began"), "{message}");
    }

    #[test]
    fn files_may_move_as_long_as_their_contents_come_in_the_same_order() {
        let then = [file("a.txt", 3), file("b.txt", 5)];
        assert!(check_unchanged(&then, &then).is_ok());
        assert!(check_unchanged(&then, &[file("x/a.txt", 3), file("x/z.txt", 5)]).is_ok());
        assert!(check_unchanged(&then, &[file("a.txt", 3), file("0.txt", 5)]).is_ok());
        assert!(check_unchanged(&then, &[file("0.txt", 5), file("a.txt", 3)]).is_err());
        let message = check_unchanged(&then, &[file("b.txt", 5), file("a.txt", 3)]).unwrap_err();
        assert!(message.to_string().contains("another order"), "{message}");
    }
}
