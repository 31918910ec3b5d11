//! Trains the cells, some at a time. Several processes may share a folder: each locks the cell that it trains.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::Result;
use tealight_train::run::RunDirectory;

use super::Atlas;
use super::cells::Cell;
use super::record::CellRecord;
use crate::runs::config::check_same_run;
use crate::runs::ended::{ABOVE_LIMIT, DIVERGED, Ended};
use crate::runs::summary::Summary;
use crate::runs::training;
use crate::terminal::numbers::duration;
use crate::terminal::output::log;

/// What the workers share.
struct Shared {
    atlas: Mutex<State>,
    /// A worker has finished a cell, or has given up.
    changed: Condvar,
    jobs: usize,
}

struct State {
    atlas: Atlas,
    /// Cells that a worker of this process trains, that another process has locked, or that were stopped here.
    taken: BTreeMap<String, Taken>,
    /// The first error of a worker, which ends all.
    error: Option<anyhow::Error>,
    /// Cells of this process.
    n_started: usize,
    n_ended: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Taken {
    Here,
    Elsewhere,
    Stopped,
}

/// A cell that this process has locked.
struct Claim {
    cell: Cell,
    lock: File,
    resumes: bool,
    place: String,
}

/// What is left when there is nothing more to train here.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Left {
    /// Cells that other processes train.
    pub(super) n_elsewhere: usize,
    /// Cells that were stopped, or could not start.
    pub(super) n_stopped: usize,
}

/// Trains what is missing, `jobs` cells at a time.
pub(super) fn train(atlas: Atlas, jobs: usize) -> Result<(Atlas, Left)> {
    let jobs = jobs.min(atlas.wanted().len());
    let state = State { atlas, taken: BTreeMap::new(), error: None, n_started: 0, n_ended: 0 };
    let shared = Shared { atlas: Mutex::new(state), changed: Condvar::new(), jobs };
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                if let Err(error) = shared.work() {
                    shared.state().error.get_or_insert(error);
                }
                shared.changed.notify_all();
            });
        }
    });
    let state = shared.atlas.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = state.error {
        return Err(error);
    }
    let count = |wanted| state.taken.values().filter(|taken| **taken == wanted).count();
    let left = Left { n_elsewhere: count(Taken::Elsewhere), n_stopped: count(Taken::Stopped) };
    Ok((state.atlas, left))
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.atlas.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) -> Result<()> {
        while let Some(Claim { cell, lock, resumes, place }) = self.claim()? {
            log(&place);
            let output = self.state().atlas.output.clone();
            let started = Instant::now();
            let outcome = cell.job(&output, resumes).train(&lock, self.jobs)?;
            let seconds = started.elapsed().as_secs_f64();
            self.state().finish(&cell, &outcome, (&place, seconds), self.jobs)?;
            self.changed.notify_all();
        }
        Ok(())
    }

    /// The next cell that no process trains; waits while a cell that is trained here may open others.
    fn claim(&self) -> Result<Option<Claim>> {
        let mut state = self.state();
        loop {
            if state.error.is_some() {
                return Ok(None);
            }
            if let Some(claim) = state.claim()? {
                return Ok(Some(claim));
            }
            if !state.taken.values().any(|taken| *taken == Taken::Here) {
                return Ok(None);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl State {
    fn claim(&mut self) -> Result<Option<Claim>> {
        let open: Vec<Cell> = self.atlas.open_cells().into_iter().cloned().collect();
        for cell in open {
            if self.taken.contains_key(&cell.name) {
                continue;
            }
            let Some(lock) = training::lock(&cell.lock_path(&self.atlas.output))? else {
                self.taken.insert(cell.name, Taken::Elsewhere);
                continue;
            };
            // Another process may have finished it before the lock was free.
            if self.atlas.take_in(&cell)? {
                continue;
            }
            let resumes = self.atlas.directory(&cell)?.is_some();
            self.taken.insert(cell.name.clone(), Taken::Here);
            self.n_started += 1;
            let total = self.n_ended + self.atlas.wanted().len();
            let place = format!("[{}/{total}] {}", self.n_started, cell.name);
            return Ok(Some(Claim { cell, lock, resumes, place }));
        }
        Ok(None)
    }

    fn finish(
        &mut self,
        cell: &Cell,
        outcome: &training::Outcome,
        (place, seconds): (&str, f64),
        jobs: usize,
    ) -> Result<()> {
        // Those of other processes may be finished, or free.
        self.taken.retain(|name, taken| *name != cell.name && *taken != Taken::Elsewhere);
        self.n_ended += 1;
        let result = if self.atlas.take_in(cell)? {
            let record = self.atlas.record.of(cell);
            let scores = record.into_iter().flat_map(|record| &record.scores);
            let scores = scores.map(|(title, score)| format!("{title} {:.4}", score.value));
            match record.and_then(|record| record.failure.as_ref()) {
                Some(failure) => format!("failed: {failure}"),
                None => {
                    format!("{}  in {}", scores.collect::<Vec<_>>().join("  "), duration(seconds))
                }
            }
        } else {
            // It was stopped: the same command goes on with it.
            self.taken.insert(cell.name.clone(), Taken::Stopped);
            format!("stopped: {}", outcome.as_ref().err().map_or("", String::as_str))
        };
        let left = time_left(&self.atlas, &self.atlas.wanted(), jobs);
        log(&format!("{place}: {result}{left}"));
        // After each cell, so that an interrupted atlas leaves tables.
        self.atlas.write_results()
    }
}

impl Atlas {
    /// The cells that can be trained now: all rates with the first seed, and further seeds of rates that are chosen.
    pub(super) fn open_cells(&self) -> Vec<&Cell> {
        let wanted = self.wanted().into_iter();
        wanted.filter(|cell| cell.seed == 1 || self.chosen(cell.pair).is_some()).collect()
    }

    pub(super) fn directory(&self, cell: &Cell) -> Result<Option<RunDirectory>> {
        let job = cell.job(&self.output, false);
        if !job.runs.exists() {
            return Ok(None);
        }
        Ok(RunDirectory::last(&job.runs, &job.name)?)
    }

    /// Records all cells whose runs are finished and not in the record.
    pub(super) fn take_in_finished_runs(&mut self) -> Result<()> {
        let cells = self.cells.clone();
        for cell in cells.iter().filter(|cell| self.record.of(cell).is_none()).collect::<Vec<_>>() {
            self.take_in(cell)?;
        }
        Ok(())
    }

    /// Records a cell if its run is finished, or has ended with an error; whether it is so.
    fn take_in(&mut self, cell: &Cell) -> Result<bool> {
        let Some(directory) = self.directory(cell)? else { return Ok(false) };
        let panel = &self.plan.panels[self.pairs[cell.pair].panel];
        let config = cell.config(panel)?;
        let than = "the plan; choose another folder with --output";
        check_same_run(&directory, &config, than)?;
        let record = match Summary::read(directory.path())? {
            Some(summary) => CellRecord::of_run(cell, panel, &config, &directory, &summary)?,
            // Any other error, such as a full disk, may not come again.
            None => match Ended::read(directory.path())? {
                Some(Ended { reason, error: Some(error), .. })
                    if reason == DIVERGED || reason == ABOVE_LIMIT =>
                {
                    let is_fault = reason == ABOVE_LIMIT;
                    CellRecord { is_fault, ..CellRecord::failed(cell, Some(error)) }
                }
                _ => return Ok(false),
            },
        };
        self.record.cells.insert(cell.name.clone(), record);
        Ok(true)
    }
}

/// `, about 2.1 h left`, by the seconds of cells of the same pair, or else of the same panel; nothing if none is finished.
pub(super) fn time_left(atlas: &Atlas, wanted: &[&Cell], jobs: usize) -> String {
    let seconds = |is_alike: &dyn Fn(&Cell) -> bool| {
        let alike = atlas.cells.iter().filter(|cell| is_alike(cell));
        let records = alike.filter_map(|cell| atlas.outcome(cell));
        let finished = records.filter(|record| record.failure.is_none());
        let seconds: Vec<f64> = finished.map(|record| record.seconds).collect();
        (!seconds.is_empty()).then(|| seconds.iter().sum::<f64>() / seconds.len() as f64)
    };
    let panel = |cell: &Cell| atlas.pairs[cell.pair].panel;
    let of_cell = |wanted: &&Cell| {
        seconds(&|cell| cell.pair == wanted.pair)
            .or_else(|| seconds(&|cell| panel(cell) == panel(wanted)))
            .or_else(|| seconds(&|_| true))
    };
    let all: Option<Vec<f64>> = wanted.iter().map(of_cell).collect();
    match all {
        Some(all) if !all.is_empty() => {
            format!(", about {} left", duration(all.iter().sum::<f64>() / jobs.max(1) as f64))
        }
        _ => String::new(),
    }
}
