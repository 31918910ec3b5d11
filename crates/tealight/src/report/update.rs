//! What has changed in a run since a page was made: the messages of a server to a live page.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::overview::facts;
use super::read::RunData;
use super::read::cursor::Cursor;
use super::series::{Clock, Mark, N_STRETCHES, Series, marks, series};

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
