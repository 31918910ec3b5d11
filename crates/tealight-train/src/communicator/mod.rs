//! Communication between the processes ("ranks") that train one model together.
//!
//! [`Ranks`](ranks::Ranks) is what the rest of the crate uses; gradients go by a [`transport`]. A [`Communicator`]
//! moves bytes and nothing else. Sums are computed by the ranks, in one order whatever the number of ranks is, so that
//! an MPI library cannot change a result. There are three: [`alone`], one process; [`threads`], ranks that are threads
//! of one process, for tests; and [`mpi`], processes of an MPI job.
//!
//! All ranks call the same functions in the same order (collective calls), and each call returns when this rank's part
//! in it is done.

pub mod alone;
pub mod mpi;
#[cfg_attr(not(feature = "nccl"), path = "no_nccl.rs")]
pub(crate) mod nccl;
pub mod ranks;
pub mod threads;
pub mod transport;
pub mod wire;

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use crate::error::CommunicationError;

/// How long a call waits for the other ranks by default. Rank 0 may tokenise a corpus in this time, or save a
/// checkpoint on a slow disk.
pub const TIMEOUT: Duration = Duration::from_mins(30);

/// Moves bytes between ranks. Every function is collective but [`abort`](Self::abort).
///
/// At most one thread of a process may be in a call at a time.
pub trait Communicator: fmt::Debug + Send + Sync {
    /// The number of this rank, counted from 0.
    fn rank(&self) -> usize;

    /// The number of ranks.
    fn size(&self) -> usize;

    /// Sends a part of `send` to each rank, and receives a part from each (`MPI_Alltoallv`).
    ///
    /// `send_parts` are the ranges of `send` for rank 0, 1, …; `receive` is filled with the parts from rank 0, 1, … one
    /// after the other, with `receive_lens` bytes each. What rank a receives from b is as long as what b sends to a.
    ///
    /// # Errors
    /// If another rank has ended, or the library reports a failure. A rank that does not come to the call within the time
    /// limit ends all ranks.
    fn exchange(
        &self,
        send: &[u8],
        send_parts: &[Range<usize>],
        receive: &mut [u8],
        receive_lens: &[usize],
    ) -> Result<(), CommunicationError>;

    /// Sends `send` to all ranks, and fills `receive` with what rank 0, 1, … sent, with `lens` bytes each
    /// (`MPI_Allgatherv`).
    ///
    /// # Errors
    /// As [`Self::exchange`].
    fn gather(
        &self,
        send: &[u8],
        receive: &mut [u8],
        lens: &[usize],
    ) -> Result<(), CommunicationError> {
        receive[range_of(self.rank(), lens)].copy_from_slice(send);
        self.gather_in_place(receive, lens)
    }

    /// As [`Self::gather`]: sends the part of `bytes` that belongs to this rank, and fills the other parts. The length
    /// of `bytes` is the sum of `lens`.
    ///
    /// # Errors
    /// As [`Self::exchange`].
    fn gather_in_place(&self, bytes: &mut [u8], lens: &[usize]) -> Result<(), CommunicationError>;

    /// As [`Self::gather_in_place`], where each rank sends to each other rank itself (`MPI_Alltoallv`), so that no rank
    /// waits for bytes that another passes on. If several ranks share the connection of a computer, the same bytes go
    /// through it several times. The default is [`Self::gather_in_place`].
    ///
    /// # Errors
    /// As [`Self::exchange`].
    fn gather_by_pairs(&self, bytes: &mut [u8], lens: &[usize]) -> Result<(), CommunicationError> {
        self.gather_in_place(bytes, lens)
    }

    /// Fills `bytes` on all ranks with the bytes of rank `root` (`MPI_Bcast`).
    ///
    /// # Errors
    /// As [`Self::exchange`].
    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError>;

    /// Ends all ranks at once, also those that wait in a collective call. A process ends with exit status `status`.
    /// Ranks that are threads return an error from the call in which they wait.
    fn abort(&self, status: i32);
}

/// The part of `rank` in a buffer that has one of `lens` for each rank, in their order.
fn range_of(rank: usize, lens: &[usize]) -> Range<usize> {
    let start = lens[..rank].iter().sum();
    start..start + lens[rank]
}
