//! Training what is not trained yet: a process for each run, so that a crash of one ends no other.

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
use crate::system::subprocess::{complaint, this_program};

/// The file as it was when the first run started: what is edited meanwhile changes no later run.
const CONFIG: &str = "config.toml";
const LOCK: &str = ".lock";

/// What became of a run.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Finished(Summary),
    /// The whole message.
    Failed(String),
}

/// What is told about a run.
pub(super) enum Event {
    Started,
    /// With the seconds that it took here.
    Ended(Outcome, f64),
}

/// Makes the directory, and keeps others out of it until the file is closed.
pub(super) fn lock(output: &Path) -> Result<File> {
    fs::create_dir_all(output).with_context(|| format!("cannot create `{}`", output.display()))?;
    let path = output.join(LOCK);
    let file = File::options().create(true).write(true).truncate(false).open(&path);
    let file = file.with_context(|| format!("cannot create `{}`", path.display()))?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => bail!(
            "`{}` is in use: another `tealight ablate`, or a run that one has started, is at work there",
            output.display()
        ),
        // Some file systems have no locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(file),
    }
}

/// Keeps the text of the configuration, which the runs are started from.
pub(super) fn keep_config(plan: &Plan) -> Result<()> {
    let path = plan.output.join(CONFIG);
    Ok(tealight_train::storage::files::replace(&path, plan.text.as_bytes())?)
}

/// Trains the runs with these indices, `args.jobs` at a time, and tells of each when it starts and ends.
pub(super) fn train(
    plan: &Plan,
    pending: &[usize],
    args: &Ablate,
    lock: &File,
    mut tell: impl FnMut(usize, Event) -> Result<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let work = |sender: Sender<(usize, Event)>| {
        while let Some(&index) = pending.get(next.fetch_add(1, Ordering::Relaxed)) {
            let started = Instant::now();
            let run = &plan.runs[index];
            // Nobody listens any more where the table could not be written.
            if sender.send((index, Event::Started)).is_err() {
                return;
            }
            let outcome = train_one(plan, run, args, lock);
            let outcome = outcome.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")));
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
        receiver.into_iter().try_for_each(|(index, event)| tell(index, event))
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
    // The run holds the lock, too: should this process be killed, the next one waits its turn.
    command.stdin(Stdio::from(lock.try_clone().context("cannot share the lock")?));
    let output = command.stdout(Stdio::null()).output().context("cannot start a process")?;
    if !output.status.success() {
        return Ok(Outcome::Failed(complaint(&output)));
    }
    let directory = plan.directory(run)?;
    let summary = directory.map(|directory| Summary::read(directory.path())).transpose()?.flatten();
    Ok(summary.map_or_else(|| Outcome::Failed("it left no summary".to_owned()), Outcome::Finished))
}

/// Gives each of several processes its part of the threads, unless the environment says how many.
fn share_threads(command: &mut Command, jobs: usize) {
    const THREADS: &str = "RAYON_NUM_THREADS";
    if jobs > 1 && std::env::var_os(THREADS).is_none() {
        let n = thread::available_parallelism().map_or(1, |n| n.get() / jobs).max(1);
        command.env(THREADS, n.to_string());
    }
}
