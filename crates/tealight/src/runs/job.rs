//! This process as one rank of an MPI job.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Error, Result};
use candle_core::Device;
use tealight_ops::threads;
use tealight_train::CommunicationError;
use tealight_train::communicator::Communicator;
use tealight_train::communicator::mpi::{self, Mpi};
use tealight_train::communicator::ranks::{Failure, Ranks};

use crate::system::cores::Cores;
use crate::system::device::DeviceName;
use crate::terminal::failure;
use crate::terminal::output::{log, warn};

/// Joins the MPI job that this process belongs to, and runs `command` as one of its ranks. A process without a job runs
/// `command` alone.
///
/// # Errors
/// If the ranks cannot communicate from the start. An error of `command` is reported here: by rank 0 alone, if all
/// ranks know of it; otherwise by the rank that failed, which ends the job, as others may wait for it.
pub(crate) fn run(
    command: impl FnOnce(&Ranks, Option<&Mpi>) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let Some(mpi) = mpi::join(report_silence)? else { return command(&Ranks::alone(), None) };
    let job = Job(mpi);
    let ranks = job.ranks()?;
    let result = n_threads(&ranks).and_then(|n| threads::with(n, || command(&ranks, Some(&job.0))));
    let (error, failure) = match (result, ranks.failure()) {
        (Ok(code), _) => {
            job.0.finish()?;
            return Ok(code);
        }
        (Err(error), failure) => (error, failure),
    };
    // Reported before the job ends: a launcher may kill the other processes as soon as one of them has failed.
    let is_told = failure.is_some() && !is_of_communication(&error);
    if ranks.is_first() || !is_told {
        let is_of_all = failure == Some(Failure::OfAll)
            || matches!(failure, Some(Failure::OfRank(n)) if n != 0);
        failure::report(&if is_of_all { error } else { located(&error, &ranks) });
    }
    if is_told {
        job.0.finish()?;
    } else {
        job.0.abort(1);
    }
    Ok(ExitCode::FAILURE)
}

/// Shows which rank does not answer, before the job ends.
fn report_silence(rank: usize, silence: &CommunicationError) {
    let host = host_name().map(|host| format!(" on {host}")).unwrap_or_default();
    failure::report(&anyhow::anyhow!("rank {rank}{host}: {silence}"));
}

/// Whether ranks can no longer communicate.
fn is_of_communication(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(tealight_train::Error::Communication(_)))
}

/// The number that the user gave on this host, or this rank's share of the cores.
fn n_threads(ranks: &Ranks) -> Result<usize> {
    // All ranks call it, also those for which a number is given: it asks all of them.
    let Cores { n_threads, warnings } = Cores::of_rank(ranks)?;
    if let Some(n_threads) = threads::given() {
        return Ok(n_threads);
    }
    for warning in &warnings {
        if ranks.is_first() {
            warn(warning);
        }
    }
    Ok(n_threads)
}

/// The result of a rank, if all ranks succeeded.
///
/// # Errors
/// On all ranks, if one of them fails: that of the lowest rank.
pub(crate) fn agree<T>(ranks: &Ranks, own: Result<T>) -> Result<T> {
    let message = own
        .as_ref()
        .err()
        .map(|error| failure::text(error).trim_start_matches("error: ").trim_end().to_owned());
    match ranks.first_failure(message)? {
        Some((Failure::OfRank(rank), message)) if rank != ranks.rank() => {
            let host = ranks.host(rank).to_owned();
            Err(tealight_train::Error::OnRank { rank, host, message }.into())
        }
        _ => own,
    }
}

/// Opens the device of this rank. On a host with several GPUs each rank has its own.
pub(crate) fn open_device(name: DeviceName, ranks: &Ranks) -> Result<Device> {
    let here = ranks.on_this_host();
    let number = here.iter().take_while(|rank| **rank != ranks.rank()).count();
    name.of_process(number).open()
}

/// Ends the job if this rank panics: the others may wait for it.
struct Job(Arc<Mpi>);

impl Job {
    fn ranks(&self) -> Result<Ranks> {
        let host = host_name().context("cannot find the name of this computer")?;
        Ok(Ranks::new(self.0.clone(), &host)?)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort(101);
        }
    }
}

/// Names the rank and the host of an error.
fn located(error: &Error, ranks: &Ranks) -> Error {
    let rank = ranks.rank();
    let host = ranks.host(rank);
    // A faulty setting is shown with its place, over several lines.
    anyhow::anyhow!("rank {rank} on {host}: {}", failure::text(error).trim_start_matches("error: "))
}

/// Logs a line on rank 0.
pub(crate) fn log_on_first(ranks: &Ranks, line: &str) {
    if ranks.is_first() {
        log(line);
    }
}

#[cfg(unix)]
fn host_name() -> Result<String> {
    Ok(rustix::system::uname().nodename().to_str()?.to_owned())
}

#[cfg(not(unix))]
fn host_name() -> Result<String> {
    Ok(std::env::var("COMPUTERNAME")?)
}
