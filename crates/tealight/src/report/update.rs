//! What has changed in a run since a page was made: the messages of a server to a live page.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result};
use serde::{Serialize, Serializer};
use tealight_train::observer::jsonl::Entry;

use super::overview::facts;
use super::read::RunData;
use super::series::{Clock, Mark, N_STRETCHES, Series, marks, series};

/// A place in `metrics.jsonl`, written `120.0`: lines, and roll-backs among them. A roll-back removes lines, so that a
/// count of lines alone would not tell what a page has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cursor {
    n_lines: usize,
    n_roll_backs: usize,
}

/// What has changed since a cursor; the module `report` shows it as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Change {
    cursor: Cursor,
    restart: bool,
    facts: BTreeMap<String, String>,
    clock: Clock,
    series: Vec<Series>,
    marks: Vec<Mark>,
}

/// What has changed in `run`, as just read, since `cursor`; everything, thinned, if lines were taken back.
pub(crate) fn update(run: &RunData, cursor: Cursor) -> Change {
    let now = run.cursor();
    let restart = now.n_roll_backs != cursor.n_roll_backs || now.n_lines < cursor.n_lines;
    let (series, marks) = if restart {
        (thinned(run, N_STRETCHES), marks(&run.entries))
    } else {
        let new = &run.entries[cursor.n_lines..];
        (series(new), marks(new))
    };
    Change { cursor: now, restart, facts: facts(run), clock: clock(run, &series), series, marks }
}

/// All series of a run with at most two points for each of `n` stretches.
pub(super) fn thinned(run: &RunData, n: usize) -> Vec<Series> {
    run.series.iter().map(|series| series.thinned(n)).collect()
}

/// Time and tokens at the steps of `series`.
pub(super) fn clock(run: &RunData, series: &[Series]) -> Clock {
    let steps: BTreeSet<u64> = series.iter().flat_map(|series| &series.steps).copied().collect();
    run.clock.at(&steps)
}

impl Change {
    /// The place up to which it reports.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }
}

impl Cursor {
    /// After the last of `entries`.
    pub(super) fn at_end(entries: &[Entry]) -> Self {
        let n_roll_backs = entries.iter().filter(|entry| entry.split == "rolled_back").count();
        Self { n_lines: entries.len(), n_roll_backs }
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
