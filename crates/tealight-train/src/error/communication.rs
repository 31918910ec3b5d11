//! Why ranks cannot communicate.

/// Communication failed or cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommunicationError {
    /// Another rank has ended.
    #[error("rank {rank} has ended the job")]
    Aborted {
        /// The rank that ended it.
        rank: usize,
    },
    /// A rank neither answers nor ends.
    #[error("{whose} has not answered for {seconds} s (`TEALIGHT_RANK_TIMEOUT` sets the limit)")]
    Silent {
        /// The rank, as far as it is known.
        whose: String,
        /// The time for which this rank has waited.
        seconds: u64,
    },
    /// The thread that exchanges gradients has ended.
    #[error("the thread that exchanges gradients has ended")]
    Ended,
    /// A function of the MPI library or of NCCL failed.
    #[error("`{function}` of {library} fails: {message}")]
    Library {
        /// Its name, such as `MPI_Alltoallv`.
        function: &'static str,
        /// The library's file.
        library: String,
        /// The library's description of the error.
        message: String,
    },
    /// The process was started by a launcher of several processes, and cannot communicate with the others.
    #[error("{0}")]
    Launch(String),
}
