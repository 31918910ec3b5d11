//! Runs that a command trains for its comparison, each in a process of its own, so that a crash of one does not affect
//! others.

use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context, Result};
use tealight_ops::threads;
use tealight_train::run::RunDirectory;

use super::summary::Summary;
use crate::system::subprocess::{self, THREADS, this_program};

/// The summary of a finished run, or the error message of a failed one.
pub(crate) type Outcome = Result<Summary, String>;

/// A run to train.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// A copy of the configuration, so that edits of the original do not matter.
    pub(crate) config: PathBuf,
    /// The directory of its run, and of others.
    pub(crate) runs: PathBuf,
    pub(crate) name: String,
    /// Further arguments of `train`.
    pub(crate) arguments: Vec<String>,
    /// It was started, and resumes from its last checkpoint.
    pub(crate) resumes: bool,
}

/// Creates and locks a file; `None` if another process holds the lock. It is released when the file is closed.
pub(crate) fn lock(path: &Path) -> Result<Option<File>> {
    let file = lock_file(path)?;
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(None),
        // Some file systems do not support locks.
        Ok(()) | Err(TryLockError::Error(_)) => Ok(Some(file)),
    }
}

/// As [`lock`], but waits while another process holds the lock.
pub(crate) fn wait_for_lock(path: &Path) -> Result<File> {
    let file = lock_file(path)?;
    // Some file systems do not support locks.
    let _ = file.lock();
    Ok(file)
}

fn lock_file(path: &Path) -> Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot create `{}`", folder.display()))?;
    }
    let file = File::options().create(true).write(true).truncate(false).open(path);
    file.with_context(|| format!("cannot create `{}`", path.display()))
}

impl Job {
    /// Trains it, beside others if `n_parallel` is more than 1. It inherits the `lock`: if this process is killed, the file
    /// stays locked until the run ends.
    pub(crate) fn train(&self, lock: &File, n_parallel: usize) -> Result<Outcome> {
        let mut command = this_program()?;
        command.arg("train").arg(&self.config).args(["--quiet", &format!("--name={}", self.name)]);
        command.arg("--runs").arg(&self.runs).args(&self.arguments);
        // However this process ends, on Unix the run stops with a checkpoint.
        command.args(["--parent", &std::process::id().to_string()]);
        if self.resumes {
            command.arg("--resume");
        }
        share_threads(&mut command, n_parallel);
        command.stdin(Stdio::from(lock.try_clone().context("cannot share the lock")?));
        if let Err(message) = subprocess::run(&mut command)? {
            return Ok(Err(message));
        }
        let directory = RunDirectory::last(&self.runs, &self.name)?;
        let summary = directory.map(|directory| Summary::read(directory.path())).transpose()?;
        Ok(summary.flatten().ok_or_else(|| "the run has no summary.json".to_owned()))
    }
}

/// Divides the CPU threads among parallel processes, unless the environment sets their number.
fn share_threads(command: &mut Command, n_parallel: usize) {
    if n_parallel > 1 && threads::given().is_none() {
        let n = thread::available_parallelism().map_or(1, |n| n.get() / n_parallel);
        command.env(THREADS, n.clamp(1, threads::MOST_GIVEN).to_string());
    }
}
