//! Processes of an MPI job, on one computer or several.
//!
//! The MPI library is opened while the program runs, and only if a launcher such as `mpirun` or `srun` started this
//! process together with others ([`join`]). It moves bytes and adds nothing, so that its algorithms cannot change a
//! result.
//!
//! | environment variable | |
//! |---|---|
//! | `TEALIGHT_MPI` | path of the library; without it, Tealight searches that of the launcher |
//! | `TEALIGHT_MPI=none` | the processes do not work together: no library is opened |
//! | `TEALIGHT_RANK_TIMEOUT` | seconds that a call waits for the other ranks before it ends the job; 0 for any time |
//!
//! A library that belongs to another launcher knows only of this process, and is refused; or it ends the process in
//! `MPI_Init_thread` with a message of its own.
//!
//! Cost for n bytes per rank and R ranks: n·(R−1)/R bytes ([`exchange`](Communicator::exchange)) or n·(R−1) bytes
//! ([`gather`](Communicator::gather)) go through the network connection of each rank.

mod launcher;
mod library;
mod parts;
mod peers;
mod search;
mod watch;
mod world;

use std::ffi::OsString;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use launcher::{Launcher, Variables};
use parts::{LIMIT, Pairs, Parts};
use peers::Peers;
use watch::Watch;
use world::World;

use super::Communicator;
use crate::error::CommunicationError;

/// Joins the processes that a launcher started together with this one (`MPI_Init_thread`). `None` if there are none,
/// also if a launcher started this one alone: no library is needed then.
///
/// It may be called once. The same thread calls [`Mpi::finish`] at the end; other functions may be called from any
/// thread.
///
/// If a call waits for another rank longer than `TEALIGHT_RANK_TIMEOUT` says, a thread calls `report` with the number of
/// this rank and the error, and ends the job.
///
/// # Errors
/// If no MPI library is found, or it fails, or it does not know of the other processes.
pub fn join(report: Report) -> Result<Option<Arc<Mpi>>, CommunicationError> {
    join_with(&|name| std::env::var_os(name), report)
}

/// Shows the error of a rank.
pub type Report = fn(usize, &CommunicationError);

/// What the environment says about processes that a launcher started together with this one; `None` if there are none,
/// or if `TEALIGHT_MPI` is `none`.
pub fn launched_together() -> Option<String> {
    let variables: Variables<'_> = &|name| std::env::var_os(name);
    let is_none = variables(search::LIBRARY) == Some(OsString::from("none"));
    Launcher::find(variables).filter(|_| !is_none).map(|launcher| launcher.to_string())
}

/// The library that `TEALIGHT_MPI` names, or the first beside the launcher that the shell finds; `None` if there is
/// neither. It is not opened.
pub fn library_file() -> Option<PathBuf> {
    search::file(&|name| std::env::var_os(name))
}

fn join_with(
    variables: Variables<'_>,
    report: Report,
) -> Result<Option<Arc<Mpi>>, CommunicationError> {
    if variables(search::LIBRARY) == Some(OsString::from("none")) {
        return Ok(None);
    }
    let Some(launcher) = Launcher::find(variables) else { return Ok(None) };
    let limit = watch::limit(variables)?;
    let watch = Arc::new(Watch::default());
    let world = world::join(search::open(&launcher, variables)?, watch.clone())?;
    let mpi = Arc::new(Mpi { world });
    mpi.check_size(&launcher)?;
    let peers = mpi.peers()?;
    if let Some(limit) = limit {
        let ended = mpi.clone();
        watch::start(watch, limit, peers, move |error| {
            report(ended.rank(), &error);
            ended.abort_at_once();
        });
    }
    Ok(Some(mpi))
}

/// A process of an MPI job.
///
/// A process that ends well calls [`finish`](Self::finish); any other process calls [`abort`](Communicator::abort).
/// There is no `Drop`, because leaving the job means waiting for the other processes, which a process that fails must
/// not do.
pub struct Mpi {
    world: Box<dyn World>,
}

impl Mpi {
    /// The library's name, version, file and ABI.
    pub fn describe(&self) -> String {
        self.world.about().to_string()
    }

    /// Sums of each rank's `terms`, by the library (`MPI_Allreduce`). The library chooses the order of the additions,
    /// so that the sums depend on the number of ranks: use them for comparison, not for training.
    ///
    /// # Errors
    /// As [`Communicator::exchange`].
    ///
    /// # Panics
    /// If there are not as many `sums` as `terms`.
    pub fn allreduce_f32_sum(
        &self,
        terms: &[f32],
        sums: &mut [f32],
    ) -> Result<(), CommunicationError> {
        assert_eq!(terms.len(), sums.len(), "as many sums as terms");
        let mut rounds = terms.chunks(ROUND).zip(sums.chunks_mut(ROUND));
        rounds.try_for_each(|(terms, sums)| self.world.allreduce(terms, sums))
    }

    /// Waits for the other ranks and leaves the job (`MPI_Finalize`). For the launcher, a process that ends without
    /// this call has failed. A second call does nothing; all other calls fail afterwards.
    ///
    /// In a panic it ends the job instead ([`Communicator::abort`]), because the others may wait for this rank.
    ///
    /// # Errors
    /// If the library reports a failure.
    pub fn finish(&self) -> Result<(), CommunicationError> {
        if std::thread::panicking() {
            self.abort(STATUS_OF_PANIC);
        }
        self.world.finalize()
    }

    /// A library that belongs to another launcher knows of this process only, and so does one that `srun` tells
    /// nothing: each process would train alone.
    fn check_size(&self, launcher: &Launcher) -> Result<(), CommunicationError> {
        let size = self.size();
        if size >= launcher.at_least {
            return Ok(());
        }
        if size == 1 {
            self.finish()?;
        }
        let (library, remedy) = (self.describe(), launcher.remedy());
        Err(CommunicationError::Launch(format!(
            "{launcher}, and {library} knows of {size}: {remedy}, or to `none` if the processes do not work together"
        )))
    }

    /// The other ranks.
    fn peers(&self) -> Result<Peers, CommunicationError> {
        let (process, computer) = peers::place();
        let own = [u64::from(process), computer].map(u64::to_le_bytes);
        let mut received = vec![0; own.as_flattened().len() * self.size()];
        let lens = vec![own.as_flattened().len(); self.size()];
        self.gather(own.as_flattened(), &mut received, &lens)?;
        let numbers: Vec<_> =
            received.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        let (places, _) = numbers.as_chunks();
        let places: Vec<_> =
            places.iter().map(|&[process, computer]| (process as u32, computer)).collect();
        Ok(Peers::new(self.rank(), &places))
    }

    /// As [`Communicator::abort`], and ends this process also if the library waits in a call of another thread.
    fn abort_at_once(&self) {
        std::thread::spawn(|| {
            std::thread::sleep(ABORT);
            std::process::abort();
        });
        self.abort(1);
    }

    /// The error of a call that moves too much.
    fn too_long(&self) -> CommunicationError {
        CommunicationError::Library {
            function: "MPI_Alltoallv",
            library: self.world.about().file.clone(),
            message: format!("a call moves at most {LIMIT} bytes"),
        }
    }

    /// As `gather_in_place`, for any number of bytes: each rank in turn sends to all.
    fn gather_in_turn(&self, bytes: &mut [u8], lens: &[usize]) -> Result<(), CommunicationError> {
        let mut rest = bytes;
        for (root, &len) in lens.iter().enumerate() {
            let (part, after) = rest.split_at_mut(len);
            self.broadcast(root, part)?;
            rest = after;
        }
        Ok(())
    }
}

/// The most items that a call of the library moves: their number is a C integer.
const ROUND: usize = 1 << 30;

/// The time that `MPI_Abort` gets to end the job.
const ABORT: Duration = Duration::from_secs(10);

/// The exit status of a program that panics.
const STATUS_OF_PANIC: i32 = 101;

impl Communicator for Mpi {
    fn rank(&self) -> usize {
        self.world.rank()
    }

    fn size(&self) -> usize {
        self.world.size()
    }

    /// What this rank sends and what it receives must each be below 2 GiB: the caller splits longer buffers.
    fn exchange(
        &self,
        send: &[u8],
        send_parts: &[Range<usize>],
        receive: &mut [u8],
        receive_lens: &[usize],
    ) -> Result<(), CommunicationError> {
        let send_parts = Parts::of_ranges(send_parts).ok_or_else(|| self.too_long())?;
        let receive_parts = Parts::new(receive_lens).ok_or_else(|| self.too_long())?;
        self.world.alltoallv(send, &send_parts, receive, &receive_parts)
    }

    fn gather_in_place(&self, bytes: &mut [u8], lens: &[usize]) -> Result<(), CommunicationError> {
        // All ranks know all lengths, so that they come to the same decision.
        match Parts::new(lens) {
            Some(parts) => self.world.allgatherv(bytes, &parts),
            None => self.gather_in_turn(bytes, lens),
        }
    }

    fn gather_by_pairs(&self, bytes: &mut [u8], lens: &[usize]) -> Result<(), CommunicationError> {
        match Pairs::new(self.rank(), lens) {
            Some(pairs) => self.world.alltoallv_in_place(bytes, &pairs),
            None => self.gather_in_turn(bytes, lens),
        }
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError> {
        bytes.chunks_mut(ROUND).try_for_each(|round| self.world.bcast(root, round))
    }

    fn abort(&self, status: i32) {
        self.world.abort(status);
        std::process::exit(status);
    }
}

impl fmt::Debug for Mpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rank, size) = (self.rank(), self.size());
        write!(f, "Mpi {{ rank {rank} of {size}, {} }}", self.describe())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(set: &[(&str, &str)]) -> Result<bool, CommunicationError> {
        let variables = |name: &str| {
            set.iter().find(|(other, _)| *other == name).map(|(_, value)| OsString::from(value))
        };
        join_with(&variables, |_, _| {}).map(|mpi| mpi.is_some())
    }

    #[test]
    fn a_plain_process_opens_no_library() {
        assert_eq!(joined(&[("TEALIGHT_MPI", "/nowhere/libmpi.so")]), Ok(false));
    }

    #[test]
    fn processes_that_do_not_work_together_open_no_library() {
        assert_eq!(joined(&[("OMPI_COMM_WORLD_SIZE", "3"), ("TEALIGHT_MPI", "none")]), Ok(false));
    }

    #[test]
    fn one_of_several_processes_must_find_its_library() {
        let set = [("OMPI_COMM_WORLD_SIZE", "3"), ("TEALIGHT_MPI", "/nowhere/libmpi.so")];
        assert!(matches!(joined(&set), Err(CommunicationError::Launch(_))));
    }
}
