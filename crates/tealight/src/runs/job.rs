//! This process as one rank of an MPI job.

use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Error, Result};
use candle_core::Device;
use tealight_ops::threads;
use tealight_train::communicator::Communicator;
use tealight_train::communicator::mpi::{self, Mpi};
use tealight_train::communicator::ranks::{Failure, Ranks};

use crate::system::cores::Cores;
use crate::system::device::DeviceName;
use crate::system::subprocess::THREADS;
use crate::terminal::failure;
use crate::terminal::output::log;

/// Runs `command` together with the other processes of an MPI job, or alone if there is none.
///
/// # Errors
/// That of `command`. If all ranks know of it, rank 0 alone returns it. Otherwise the job ends here, as other ranks may
/// wait for this one.
pub(crate) fn run(
    command: impl FnOnce(&Ranks, Option<&Mpi>) -> Result<ExitCode>,
) -> Result<ExitCode> {
    let Some(mpi) = mpi::join()? else { return command(&Ranks::alone(), None) };
    let job = Job(mpi);
    let ranks = job.ranks()?;
    let result = n_threads(&ranks).and_then(|n| threads::with(n, || command(&ranks, Some(&job.0))));
    match (result, ranks.failure()) {
        (Ok(code), _) => {
            job.0.finish()?;
            Ok(code)
        }
        (Err(error), Some(failure)) => {
            job.0.finish()?;
            if !ranks.is_first() {
                return Ok(ExitCode::FAILURE);
            }
            Err(if failure == Failure::OfRank(0) { located(error, &ranks) } else { error })
        }
        (Err(error), None) => {
            failure::report(&located(error, &ranks));
            job.0.abort(1);
            Ok(ExitCode::FAILURE)
        }
    }
}

/// The number that the user gave, or this rank's share of the cores.
fn n_threads(ranks: &Ranks) -> Result<usize> {
    if std::env::var(THREADS).is_ok() {
        return Ok(threads::count());
    }
    let Cores { n_threads, warnings } = Cores::of_rank(ranks)?;
    for warning in &warnings {
        log_on_first(ranks, warning);
    }
    Ok(n_threads)
}

/// The result of a rank, if all ranks succeeded.
///
/// # Errors
/// On all ranks, if one of them fails: that of the lowest rank.
pub(crate) fn agree<T>(ranks: &Ranks, own: Result<T>) -> Result<T> {
    let message = own.as_ref().err().map(|error| format!("{error:#}"));
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
fn located(error: Error, ranks: &Ranks) -> Error {
    let rank = ranks.rank();
    error.context(format!("rank {rank} on {}", ranks.host(rank)))
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
