//! A place in the metrics of a run.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result};
use serde::{Serialize, Serializer};
use tealight_train::observer::jsonl::Entry;

/// A place in `metrics.jsonl`, written `120.0`: lines, and roll-backs among them. A roll-back removes lines, so that a
/// count of lines alone would not tell what a page has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    pub(in crate::report) n_lines: usize,
    pub(in crate::report) n_roll_backs: usize,
}

impl Cursor {
    /// Moves behind `entries`, the next lines of the file.
    pub(super) fn pass(&mut self, entries: &[Entry]) {
        self.n_lines += entries.len();
        self.n_roll_backs += entries.iter().filter(|entry| entry.split == "rolled_back").count();
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.n_lines, self.n_roll_backs)
    }
}

impl FromStr for Cursor {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let parsed = text.split_once('.').and_then(|(lines, roll_backs)| {
            Some(Self { n_lines: lines.parse().ok()?, n_roll_backs: roll_backs.parse().ok()? })
        });
        parsed.with_context(|| format!("`{}` is no cursor such as `120.0`", text.escape_debug()))
    }
}

impl Serialize for Cursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursors_are_read_as_written() {
        let cursor = Cursor { n_lines: 120, n_roll_backs: 3 };
        assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
        for wrong in ["", "7", "7.x", "<b>.0"] {
            assert!(wrong.parse::<Cursor>().is_err(), "{wrong}");
        }
    }
}
