//! Trains the pending runs.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Instant;

use anyhow::{Result, bail};

use super::plan::Plan;
use crate::runs::training::{self, Outcome};

const LOCK: &str = ".lock";

/// A change in the state of a run.
pub(super) enum Event {
    Started,
    /// With the duration in seconds.
    Ended(Outcome, f64),
}

/// Creates and locks the output directory; the lock is released when the file is closed.
pub(super) fn lock(output: &Path) -> Result<File> {
    match training::lock(&output.join(LOCK))? {
        Some(lock) => Ok(lock),
        None => bail!(
            "`{}` is in use by another `tealight ablate` or a run that it has started",
            output.display()
        ),
    }
}

/// Trains the runs with the indices `pending`, `args.jobs` in parallel. Calls `on_event` with a position in
/// `pending` when a run starts or ends.
pub(super) fn train(
    plan: &Plan<'_>,
    pending: &[usize],
    lock: &File,
    mut on_event: impl FnMut(usize, Event) -> Result<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let n_parallel = plan.args.jobs.min(pending.len());
    let work = |sender: Sender<(usize, Event)>| {
        loop {
            let position = next.fetch_add(1, Ordering::Relaxed);
            let Some(&index) = pending.get(position) else { return };
            let started = Instant::now();
            // The receiver is gone after an error of `on_event`.
            if sender.send((position, Event::Started)).is_err() {
                return;
            }
            let outcome = plan.job(&plan.runs[index]).train(lock, plan.args.jobs);
            let outcome = outcome.unwrap_or_else(|error| Err(format!("{error:#}")));
            let seconds = started.elapsed().as_secs_f64();
            if sender.send((position, Event::Ended(outcome, seconds))).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..n_parallel {
            let sender = sender.clone();
            scope.spawn(|| work(sender));
        }
        drop(sender);
        receiver.into_iter().try_for_each(|(position, event)| on_event(position, event))
    })
}
