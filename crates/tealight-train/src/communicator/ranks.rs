//! The ranks of a job, as the training loop sees them: values and errors instead of bytes.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::Communicator;
use super::alone::Alone;
use crate::error::{Error, Result};

/// The most bytes that one collective call moves: MPI counts in 32 bits.
const MAX_BYTES: usize = 1 << 30;

/// The ranks that train together, seen from one of them.
#[derive(Clone, Debug)]
pub struct Ranks {
    communicator: Arc<dyn Communicator>,
    /// By rank.
    hosts: Arc<[String]>,
    /// Whether several ranks reach other hosts through one connection.
    share_a_connection: bool,
    /// Set when all ranks know of the error that ends the job.
    failure: Arc<OnceLock<Failure>>,
}

/// Whose error ends a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// That of one rank.
    OfRank(usize),
    /// Every rank has found the same error.
    OfAll,
}

impl Ranks {
    /// A single process.
    pub fn alone() -> Self {
        let hosts = Arc::new([String::new()]);
        Self {
            communicator: Arc::new(Alone),
            hosts,
            share_a_connection: false,
            failure: Arc::default(),
        }
    }

    /// The ranks of `communicator`. This one runs on `host`.
    ///
    /// # Errors
    /// If communication fails.
    pub fn new(communicator: Arc<dyn Communicator>, host: &str) -> Result<Self> {
        let unnamed = Self { communicator, ..Self::alone() };
        let hosts: Arc<[String]> = unnamed.gather(&host.to_owned())?.into();
        let n_hosts = hosts.iter().collect::<BTreeSet<_>>().len();
        let share_a_connection = n_hosts > 1 && n_hosts < hosts.len();
        Ok(Self { hosts, share_a_connection, ..unnamed })
    }

    /// The number of this rank, counted from 0.
    pub fn rank(&self) -> usize {
        self.communicator.rank()
    }

    /// The number of ranks.
    pub fn size(&self) -> usize {
        self.communicator.size()
    }

    /// Whether there is no other rank.
    pub fn is_alone(&self) -> bool {
        self.size() == 1
    }

    /// Whether this is rank 0, which alone writes.
    pub fn is_first(&self) -> bool {
        self.rank() == 0
    }

    /// The host of a rank.
    pub fn host(&self, rank: usize) -> &str {
        &self.hosts[rank]
    }

    /// The ranks on the host of this one, in ascending order.
    pub fn on_this_host(&self) -> Vec<usize> {
        let here = self.host(self.rank());
        (0..self.size()).filter(|&rank| self.host(rank) == here).collect()
    }

    /// The part of this rank in `n` numbered items, which the ranks divide in ascending order, without a remainder.
    pub fn part_of(&self, n: u64) -> Range<u64> {
        let (rank, len) = (self.rank() as u64, n / self.size() as u64);
        rank * len..(rank + 1) * len
    }

    /// The communicator, which moves the bytes.
    pub fn communicator(&self) -> &dyn Communicator {
        &*self.communicator
    }

    /// What each rank passes, by rank.
    ///
    /// # Errors
    /// If communication fails.
    pub fn gather<T: Serialize + DeserializeOwned>(&self, value: &T) -> Result<Vec<T>> {
        let bytes = to_bytes(value)?;
        self.gather_bytes(&bytes)?.iter().map(|bytes| from_bytes(bytes)).collect()
    }

    /// [`Self::gather`] of bytes.
    ///
    /// # Errors
    /// If communication fails.
    pub fn gather_bytes(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.gather_for(Receivers::All, bytes)
    }

    /// Fills `bytes`, whose length is the sum of `lens`, with the parts of all ranks; rank r has written the `lens[r]`
    /// bytes of its part. Each rank sends to each other rank ([`Communicator::gather_by_pairs`]). But if several ranks
    /// share the connection of their host, [`Communicator::gather_in_place`] is called, which sends the same bytes
    /// through it only once.
    ///
    /// # Errors
    /// If communication fails.
    pub(crate) fn gather_in_place(&self, bytes: &mut [u8], lens: &[usize]) -> Result<()> {
        if self.share_a_connection {
            self.communicator.gather_in_place(bytes, lens)?;
        } else {
            self.communicator.gather_by_pairs(bytes, lens)?;
        }
        Ok(())
    }

    /// On rank 0, the bytes that each rank passes, by rank; empty on the other ranks.
    ///
    /// # Errors
    /// If communication fails.
    pub fn gather_on_first(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        self.gather_for(Receivers::First, bytes)
    }

    /// The bytes that each rank passes, moved in pieces that one call can move.
    fn gather_for(&self, receivers: Receivers, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.gather_len(bytes.len())?;
        let receives = receivers == Receivers::All || self.is_first();
        let mut gathered = vec![Vec::new(); if receives { self.size() } else { 0 }];
        let piece = MAX_BYTES / self.size();
        for start in (0..all.iter().copied().max().unwrap_or(0)).step_by(piece) {
            let part = |len: usize| start.min(len)..(start + piece).min(len);
            let own = &bytes[part(bytes.len())];
            let lens = all.iter().map(|&len| if receives { part(len).len() } else { 0 });
            let lens: Vec<_> = lens.collect();
            let mut received = vec![0; lens.iter().sum()];
            match receivers {
                Receivers::All => self.communicator.gather(own, &mut received, &lens)?,
                Receivers::First => {
                    let mut to = vec![0..0; self.size()];
                    to[0] = 0..own.len();
                    self.communicator.exchange(own, &to, &mut received, &lens)?;
                }
            }
            append(&mut gathered, &received, &lens);
        }
        Ok(gathered)
    }

    /// The bytes that rank 0 passes; the other ranks pass none.
    ///
    /// # Errors
    /// If communication fails.
    pub fn broadcast_bytes(&self, bytes: Vec<u8>) -> Result<Vec<u8>> {
        let len = self.gather_len(bytes.len())?[0];
        let mut bytes = if self.is_first() { bytes } else { vec![0; len] };
        for piece in bytes.chunks_mut(MAX_BYTES) {
            self.communicator.broadcast(0, piece)?;
        }
        Ok(bytes)
    }

    /// The bytes that `f` returns, which rank 0 alone runs.
    ///
    /// # Errors
    /// On all ranks, if `f` fails or communication does.
    pub fn bytes_of_first(&self, f: impl FnOnce() -> Result<Vec<u8>>) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.on_first(|| {
            bytes = f()?;
            Ok(())
        })?;
        self.broadcast_bytes(bytes)
    }

    /// The value of each rank, by rank, if all of them succeeded.
    ///
    /// # Errors
    /// On all ranks, if one of them passes an error. The error of the lowest rank counts: that rank returns its own
    /// error, the other ranks return [`Error::OnRank`]. If all ranks pass the same error, each returns its own. Also if
    /// communication fails.
    pub fn agree<T: Serialize + DeserializeOwned>(&self, own: Result<T>) -> Result<Vec<T>> {
        let own = match own {
            Err(Error::Communication(error)) => return Err(error.into()),
            own => own,
        };
        if self.is_alone() {
            return own.map(|value| vec![value]);
        }
        let told = match &own {
            Ok(value) => Ok(to_bytes(value)?),
            Err(error) => Err(with_causes(error)),
        };
        let all: Vec<Result<Vec<u8>, String>> = self.gather(&told)?;
        let Some(failure) = self.note_failure(&all) else {
            return all.into_iter().flatten().map(|bytes| from_bytes(&bytes)).collect();
        };
        let rank = match failure {
            Failure::OfRank(rank) => rank,
            Failure::OfAll => self.rank(),
        };
        let elsewhere = |message: &String| {
            Err(Error::OnRank { rank, host: self.host(rank).to_owned(), message: message.clone() })
        };
        match (own, &all[rank]) {
            (Ok(_), Err(message)) => elsewhere(message),
            (Err(_), Err(message)) if rank != self.rank() => elsewhere(message),
            (own, _) => own.map(|_| Vec::new()),
        }
    }

    /// Whose error ends the job, if any rank has one.
    fn note_failure<T>(&self, all: &[Result<T, String>]) -> Option<Failure> {
        let rank = all.iter().position(Result::is_err)?;
        let text = all[rank].as_ref().err();
        let is_of_all = all.iter().all(|own| own.as_ref().err() == text);
        let failure = if is_of_all { Failure::OfAll } else { Failure::OfRank(rank) };
        self.failure.get_or_init(|| failure);
        Some(failure)
    }

    /// As [`Self::agree`], of errors of any kind: whose error ends the job and its text; `None` if no rank passes one.
    ///
    /// # Errors
    /// If communication fails.
    pub fn first_failure(&self, own: Option<String>) -> Result<Option<(Failure, String)>> {
        let own = own.map_or(Ok(()), Err);
        let all = if self.is_alone() { vec![own] } else { self.gather(&own)? };
        let text = all.iter().find_map(|own| own.as_ref().err().cloned());
        Ok(self.note_failure(&all).zip(text))
    }

    /// The result of `f`, which rank 0 alone runs.
    ///
    /// # Errors
    /// On all ranks, if `f` fails or communication does.
    pub fn on_first<T: Serialize + DeserializeOwned>(
        &self,
        f: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        if self.is_alone() {
            return f();
        }
        let own = if self.is_first() { f().map(Some) } else { Ok(None) };
        let first = self.agree(own)?.into_iter().flatten().next();
        first.ok_or(Error::Message(postcard::Error::DeserializeUnexpectedEnd))
    }

    /// Marks an error that every rank has found by itself, from numbers that are the same on all.
    pub(crate) fn as_shared_failure(&self, error: Error) -> Error {
        self.failure.get_or_init(|| Failure::OfAll);
        error
    }

    /// The failure that ends the job and that all ranks know of. While it is `None`, a rank that fails must end the
    /// other ranks by [`abort`](Communicator::abort).
    pub fn failure(&self) -> Option<Failure> {
        if self.is_alone() { Some(Failure::OfAll) } else { self.failure.get().copied() }
    }

    /// By rank.
    fn gather_len(&self, len: usize) -> Result<Vec<usize>> {
        const WIDTH: usize = size_of::<u64>();
        let mut received = vec![0; WIDTH * self.size()];
        let own = (len as u64).to_le_bytes();
        self.communicator.gather(&own, &mut received, &vec![WIDTH; self.size()])?;
        let (lens, _) = received.as_chunks();
        Ok(lens.iter().map(|len| u64::from_le_bytes(*len) as usize).collect())
    }
}

/// The ranks that get the bytes of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receivers {
    All,
    /// Rank 0.
    First,
}

/// Appends to each list its part of `received`.
fn append(lists: &mut [Vec<u8>], mut received: &[u8], lens: &[usize]) {
    for (list, &len) in lists.iter_mut().zip(lens) {
        let (part, rest) = received.split_at(len);
        list.extend_from_slice(part);
        received = rest;
    }
}

fn to_bytes<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(Error::Message)
}

fn from_bytes<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    postcard::from_bytes(bytes).map_err(Error::Message)
}

/// `cannot create `runs/a`: permission denied`
fn with_causes(error: &Error) -> String {
    let first: &dyn std::error::Error = error;
    let causes = std::iter::successors(Some(first), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::super::threads::ThreadRank;
    use super::super::threads::tests::on_all;
    use super::super::wire::Wire;
    use super::*;
    use crate::error::CommunicationError;

    /// Runs `f` on each rank of a group, two on each host; the results by rank.
    fn on_ranks<R: Send>(size: usize, f: impl Fn(Ranks) -> R + Sync) -> Vec<R> {
        on_all(size, |rank| {
            let host = format!("host{}", rank.rank() / 2);
            f(Ranks::new(Arc::new(rank), &host).unwrap())
        })
    }

    #[test]
    fn values_arrive_bit_for_bit_and_by_rank() {
        let all = on_ranks(3, |ranks| {
            let value = (ranks.rank(), 0.1 / ranks.rank() as f64, vec!["a"; ranks.rank()].concat());
            ranks.gather(&value).unwrap()
        });
        for gathered in all {
            assert_eq!(gathered[0], (0, f64::INFINITY, String::new()));
            assert_eq!(gathered[2], (2, 0.05, "aa".to_owned()));
        }
    }

    #[test]
    fn ranks_know_their_hosts() {
        let all = on_ranks(3, |ranks| (ranks.on_this_host(), ranks.host(2).to_owned()));
        let expected = [vec![0, 1], vec![0, 1], vec![2]].map(|here| (here, "host1".to_owned()));
        assert_eq!(all, expected);
    }

    /// A rank that counts its calls of `gather_by_pairs`.
    #[derive(Debug)]
    struct Counting {
        rank: ThreadRank,
        n_by_pairs: AtomicUsize,
    }

    impl Communicator for Counting {
        fn rank(&self) -> usize {
            self.rank.rank()
        }

        fn size(&self) -> usize {
            self.rank.size()
        }

        fn exchange(
            &self,
            send: &[u8],
            send_parts: &[Range<usize>],
            receive: &mut [u8],
            receive_lens: &[usize],
        ) -> Result<(), CommunicationError> {
            self.rank.exchange(send, send_parts, receive, receive_lens)
        }

        fn gather_in_place(
            &self,
            bytes: &mut [u8],
            lens: &[usize],
        ) -> Result<(), CommunicationError> {
            self.rank.gather_in_place(bytes, lens)
        }

        fn gather_by_pairs(
            &self,
            bytes: &mut [u8],
            lens: &[usize],
        ) -> Result<(), CommunicationError> {
            self.n_by_pairs.fetch_add(1, Ordering::Relaxed);
            self.rank.gather_in_place(bytes, lens)
        }

        fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError> {
            self.rank.broadcast(root, bytes)
        }

        fn abort(&self, status: i32) {
            self.rank.abort(status);
        }
    }

    /// All ranks come to the same decision: they would wait for each other in different calls otherwise.
    #[test]
    fn numbers_travel_by_pairs_unless_ranks_of_a_host_share_its_connection_to_others() {
        for (hosts, n_by_pairs) in
            [(&["a", "a", "a"], 3), (&["a", "b", "c"], 3), (&["a", "a", "b"], 0)]
        {
            let counted = on_all(3, |rank| {
                let (own, n_by_pairs) = (rank.rank(), AtomicUsize::new(0));
                let communicator = Arc::new(Counting { rank, n_by_pairs });
                let ranks = Ranks::new(communicator.clone(), hosts[own]).unwrap();
                let send = vec![own as f32; own];
                for wire in [Wire::F32, Wire::Bf16] {
                    assert_eq!(wire.gather(&ranks, &send, &[0, 1, 2]).unwrap(), [1., 2., 2.]);
                }
                let mut bytes = [0; 3];
                bytes[[0..0, 0..1, 1..3][own].clone()].fill(own as u8);
                ranks.gather_in_place(&mut bytes, &[0, 1, 2]).unwrap();
                assert_eq!(bytes, [1, 2, 2]);
                communicator.n_by_pairs.load(Ordering::Relaxed)
            });
            assert_eq!(counted, [n_by_pairs; 3], "{hosts:?}");
        }
    }

    #[test]
    fn bytes_go_to_the_first_rank_or_come_from_it() {
        let all = on_ranks(3, |ranks| {
            let bytes = vec![7; 2 * ranks.rank()];
            let told = if ranks.is_first() { vec![1, 2, 3] } else { Vec::new() };
            (ranks.gather_on_first(&bytes).unwrap(), ranks.broadcast_bytes(told).unwrap())
        });
        assert_eq!(all[0].0, [vec![], vec![7, 7], vec![7; 4]]);
        assert!(all[1].0.is_empty() && all.iter().all(|(_, told)| *told == [1, 2, 3]));
    }

    #[test]
    fn an_error_of_one_rank_is_an_error_of_all_that_names_it() {
        let all = on_ranks(4, |ranks| {
            let own = match ranks.rank() {
                2 => Err(Error::config(["a"], "no")),
                3 => Err(Error::config(["b"], "neither")),
                rank => Ok(rank),
            };
            (ranks.agree(own).unwrap_err().to_string(), ranks.failure())
        });
        let failure = Some(Failure::OfRank(2));
        let elsewhere = ("rank 2 on host1: no".to_owned(), failure);
        assert_eq!(all[2], ("no".to_owned(), failure));
        assert!([0, 1, 3].iter().all(|&rank| all[rank] == elsewhere));
    }

    #[test]
    fn the_same_error_on_all_ranks_is_of_none_in_particular() {
        let all = on_ranks(2, |ranks| {
            let own = Err::<(), _>(Error::config([], "no"));
            (ranks.agree(own).unwrap_err().to_string(), ranks.failure())
        });
        assert_eq!(all, vec![("no".to_owned(), Some(Failure::OfAll)); 2]);
    }

    #[test]
    fn what_rank_0_finds_is_found_by_all() {
        let found = on_ranks(3, |ranks| {
            ranks.on_first(|| {
                assert!(ranks.is_first());
                Ok(Some(5))
            })
        });
        assert!(found.into_iter().all(|found| found.unwrap() == Some(5)));
        let failed = on_ranks(2, |ranks| ranks.on_first::<()>(|| Err(Error::config([], "full"))));
        let failed: Vec<_> = failed.into_iter().map(|e| e.unwrap_err().to_string()).collect();
        assert_eq!(failed, ["full", "rank 0 on host0: full"]);
    }
}
