//! `metrics.jsonl` as a page shows it. A live page goes on reading where the file ended before.

use std::mem::take;
use std::path::Path;

use anyhow::Result;
use tealight_train::observer::jsonl::{Added, Entry, Tail};

use super::cursor::Cursor;
use crate::report::series::{Clock, Mark, Series, extend, marks};

/// What was logged so far.
#[derive(Debug, Default)]
pub(crate) struct Log {
    tail: Tail,
    examples_per_step: f64,
    /// Number of steps that the run is known to have made.
    pub(crate) step: u64,
    pub(crate) series: Vec<Series>,
    pub(crate) clock: Clock,
    /// Bad steps.
    pub(crate) marks: Vec<Mark>,
    /// Where the file ended.
    pub(crate) cursor: Cursor,
    /// The lines of the last reading, the last ones before `cursor`.
    pub(crate) recent: Vec<Entry>,
}

impl Log {
    /// Reads the file at `path`, which need not exist.
    ///
    /// # Errors
    /// If a line cannot be parsed.
    pub(crate) fn read(path: &Path, examples_per_step: f64) -> Result<Self> {
        let mut log = Self { tail: Tail::new(path), examples_per_step, ..Self::default() };
        log.read_on()?;
        Ok(log)
    }

    /// Reads the lines that were added; all, if lines were taken back.
    ///
    /// # Errors
    /// If a line cannot be parsed.
    pub(crate) fn read_on(&mut self) -> Result<()> {
        let Added { entries, starts_anew } = self.tail.read()?;
        if starts_anew {
            let (tail, examples_per_step) = (take(&mut self.tail), self.examples_per_step);
            *self = Self { tail, examples_per_step, ..Self::default() };
        }
        extend(&mut self.series, &entries);
        self.clock.extend(&entries, self.examples_per_step);
        self.marks.extend(marks(&entries));
        self.cursor.pass(&entries);
        self.step = entries.iter().map(|entry| entry.step).fold(self.step, u64::max);
        self.recent = entries;
        Ok(())
    }
}
