//! Trains the pending runs, each in its own process, so that a crash of one does not affect others.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use tealight_ops::threads;

use super::plan::{Outcome, Plan, Run, State};
use crate::runs::summary::Summary;
use crate::system::subprocess::{self, THREADS, this_program};

/// A copy of the configuration, so that later runs ignore edits of the original.
pub(super) const CONFIG: &str = "config.toml";
const LOCK: &str = ".lock";

/// A change in the state of a run.
pub(super) enum Event {
    Started,
    /// With the duration in seconds.
    Ended(Outcome, f64),
}

/// Creates and locks the output directory; the lock is released when the file is closed.
pub(super) fn lock(output: &Path) -> Result<File> {
    fs::create_dir_all(output).with_context(|| format!("cannot create `{}`", output.display()))?;
    let path = output.join(LOCK);
    let file = File::options().create(true).write(true).truncate(false).open(&path);
    let file = file.with_context(|| format!("cannot create `{}`", path.display()))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => bail!(
            "`{}` is in use by another `tealight ablate` or a run that it has started",
            output.display()
        ),
        // Some file systems do not support locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
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
    let work = |sender: Sender<(usize, Event)>| {
        loop {
            let position = next.fetch_add(1, Ordering::Relaxed);
            let Some(&index) = pending.get(position) else { return };
            let started = Instant::now();
            // The receiver is gone after an error of `on_event`.
            if sender.send((position, Event::Started)).is_err() {
                return;
            }
            let outcome = train_one(plan, &plan.runs[index], lock);
            let outcome = outcome.unwrap_or_else(|error| Err(format!("{error:#}")));
            let seconds = started.elapsed().as_secs_f64();
            if sender.send((position, Event::Ended(outcome, seconds))).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..plan.args.jobs.min(pending.len()) {
            let sender = sender.clone();
            scope.spawn(|| work(sender));
        }
        drop(sender);
        receiver.into_iter().try_for_each(|(position, event)| on_event(position, event))
    })
}

fn train_one(plan: &Plan<'_>, run: &Run, lock: &File) -> Result<Outcome> {
    let mut command = this_program()?;
    command.arg("train").arg(plan.output.join(CONFIG)).args(["--quiet", "--name", &run.name]);
    command.arg("--runs").arg(&plan.output).args(plan.settings(run));
    // However this process ends, on Unix the run stops with a checkpoint.
    command.args(["--parent", &std::process::id().to_string()]);
    if run.state == State::Unfinished {
        command.arg("--resume");
    }
    share_threads(&mut command, plan.args.jobs);
    // The run inherits the lock: if this process is killed, the directory stays locked until the run ends.
    command.stdin(Stdio::from(lock.try_clone().context("cannot share the lock")?));
    if let Err(message) = subprocess::run(&mut command)? {
        return Ok(Err(message));
    }
    let directory = plan.directory(run)?;
    let summary = directory.map(|directory| Summary::read(directory.path())).transpose()?.flatten();
    Ok(summary.ok_or_else(|| "the run has no summary.json".to_owned()))
}

/// Divides the CPU threads among parallel processes, unless the environment sets their number.
fn share_threads(command: &mut Command, jobs: usize) {
    if jobs > 1 && threads::given().is_none() {
        let n = thread::available_parallelism().map_or(1, |n| n.get() / jobs);
        command.env(THREADS, n.clamp(1, threads::MOST_GIVEN).to_string());
    }
}
