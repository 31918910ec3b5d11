//! Trains the pending runs, each in its own process, so that a crash of one does not affect others.

use std::fs::{self, File, TryLockError};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, bail};

use super::plan::{Plan, Run, State, settings};
use crate::args::ablate::Ablate;
use crate::runs::summary::Summary;
use crate::system::subprocess::{self, THREADS, this_program};

/// A copy of the configuration, so that later runs ignore edits of the original.
pub(super) const CONFIG: &str = "config.toml";
const LOCK: &str = ".lock";

/// The summary of a finished run, or the error message of a failed one.
pub(super) type Outcome = Result<Summary, String>;

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

/// Trains the runs with the indices `pending`, `args.jobs` in parallel, and calls `on_event` when one
/// starts or ends.
pub(super) fn train(
    plan: &Plan,
    pending: &[usize],
    args: &Ablate,
    lock: &File,
    mut on_event: impl FnMut(usize, Event) -> Result<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = |sender: Sender<(usize, Event)>| {
        while let Some(&index) = pending.get(next.fetch_add(1, Ordering::Relaxed)) {
            let started = Instant::now();
            let run = &plan.runs[index];
            // The receiver is gone after an error of `on_event`.
            if sender.send((index, Event::Started)).is_err() {
                return;
            }
            let outcome = train_one(plan, run, args, lock);
            let outcome = outcome.unwrap_or_else(|error| Err(format!("{error:#}")));
            let seconds = started.elapsed().as_secs_f64();
            if sender.send((index, Event::Ended(outcome, seconds))).is_err() {
                return;
            }
        }
    };
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        for _ in 0..args.jobs.min(pending.len()) {
            let sender = sender.clone();
            scope.spawn(|| work(sender));
        }
        drop(sender);
        receiver.into_iter().try_for_each(|(index, event)| on_event(index, event))
    })
}

fn train_one(plan: &Plan, run: &Run, args: &Ablate, lock: &File) -> Result<Outcome> {
    let mut command = this_program()?;
    command.arg("train").arg(plan.output.join(CONFIG)).args(["--quiet", "--name", &run.name]);
    command.arg("--runs").arg(&plan.output);
    command.args(settings(args, &plan.variants[run.variant], run.seed));
    if run.state == State::Unfinished {
        command.arg("--resume");
    }
    share_threads(&mut command, args.jobs);
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
    if jobs > 1 && std::env::var_os(THREADS).is_none() {
        let n = thread::available_parallelism().map_or(1, |n| n.get() / jobs).max(1);
        command.env(THREADS, n.to_string());
    }
}
