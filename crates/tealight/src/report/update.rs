//! What has changed in a run since a page was made: the messages of a server to a live page.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::overview::facts;
use super::read::RunData;
use super::read::cursor::Cursor;
use super::series::{Clock, Mark, N_STRETCHES, Series, marks, series};
use super::structure::structure;

/// What has changed since a cursor; the module `report` shows it as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct Change {
    cursor: Cursor,
    restart: bool,
    structure: String,
    facts: BTreeMap<String, String>,
    clock: Clock,
    series: Vec<Series>,
    marks: Vec<Mark>,
}

/// What has changed in `run`, as just read, since `cursor`; everything, thinned, if lines were taken back, or if those
/// since the cursor were read so long ago that they are forgotten.
pub(crate) fn update(run: &RunData, cursor: Cursor) -> Change {
    let log = &run.log;
    let n_new = log.cursor.n_lines.checked_sub(cursor.n_lines);
    let new = n_new.and_then(|n| Some(&log.recent[log.recent.len().checked_sub(n)?..]));
    let new = new.filter(|_| log.cursor.n_roll_backs == cursor.n_roll_backs);
    let (series, marks) = match new {
        Some(new) => (series(new), marks(new)),
        None => (thinned(run, N_STRETCHES), log.marks.clone()),
    };
    let clock = clock(run, &series);
    let facts = facts(run);
    let structure = structure(run);
    Change { cursor: log.cursor, restart: new.is_none(), structure, facts, clock, series, marks }
}

/// All series of a run with at most two points for each of `n` stretches.
pub(super) fn thinned(run: &RunData, n: usize) -> Vec<Series> {
    run.log.series.iter().map(|series| series.thinned(n)).collect()
}

/// Time and tokens at the steps of `series`.
pub(super) fn clock(run: &RunData, series: &[Series]) -> Clock {
    let steps: BTreeSet<u64> = series.iter().flat_map(|series| &series.steps).copied().collect();
    run.log.clock.at(&steps)
}

impl Change {
    /// The place up to which it reports.
    pub(crate) fn cursor(&self) -> Cursor {
        self.cursor
    }
}
