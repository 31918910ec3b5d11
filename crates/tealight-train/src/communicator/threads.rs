//! Ranks that are threads of one process. Tests train with them on any machine, without MPI.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Communicator, TIMEOUT};
use crate::error::CommunicationError;

/// One rank of a group of threads. When it is dropped, a call of another rank that still waits for it fails.
#[derive(Debug)]
pub struct ThreadRank {
    rank: usize,
    size: usize,
    timeout: Duration,
    group: Arc<Group>,
}

/// A group of `size` ranks, one for each thread.
pub fn ranks(size: usize) -> Vec<ThreadRank> {
    ranks_with_timeout(size, TIMEOUT)
}

/// As [`ranks`]. A rank that does not come to a call of the other ranks within `timeout` ends the job.
pub fn ranks_with_timeout(size: usize, timeout: Duration) -> Vec<ThreadRank> {
    let state = State { sent: vec![None; size], n_read: 0, gone: vec![false; size], aborted: None };
    let group = Arc::new(Group { state: Mutex::new(state), changed: Condvar::new() });
    (0..size).map(|rank| ThreadRank { rank, size, timeout, group: group.clone() }).collect()
}

#[derive(Debug)]
struct Group {
    state: Mutex<State>,
    /// Notified when `state` changes.
    changed: Condvar,
}

/// The bytes that the ranks have sent in the current call.
#[derive(Debug)]
struct State {
    /// By rank; `None` until the rank has made the call.
    sent: Vec<Option<Arc<Sent>>>,
    /// Number of ranks that have read the bytes of all ranks. The last of them clears `sent`.
    n_read: usize,
    /// Ranks that have been dropped.
    gone: Vec<bool>,
    /// The rank that called [`Communicator::abort`].
    aborted: Option<usize>,
}

/// The bytes that a rank sends in one call, and which of them go to each rank.
#[derive(Debug)]
struct Sent {
    bytes: Vec<u8>,
    parts: Vec<Range<usize>>,
}

impl ThreadRank {
    /// Sends `sent`, and returns the bytes that each rank has sent in this call.
    fn share(&self, sent: Sent) -> Result<Vec<Arc<Sent>>, CommunicationError> {
        let Group { changed, .. } = &*self.group;
        // The call before ends when all ranks have read.
        let mut state = self.wait_until(self.lock(), |state| state.sent[self.rank].is_none())?;
        state.sent[self.rank] = Some(Arc::new(sent));
        changed.notify_all();
        let mut state = self.wait_until(state, |state| state.sent.iter().all(Option::is_some))?;
        let all = state.sent.iter().flatten().cloned().collect();
        state.n_read += 1;
        if state.n_read == self.size {
            state.n_read = 0;
            state.sent.fill(None);
            changed.notify_all();
        }
        Ok(all)
    }

    /// Waits until `holds`.
    ///
    /// # Errors
    /// If a rank has aborted, has gone without having made the call, or does not make it within the time limit.
    fn wait_until<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        holds: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, CommunicationError> {
        let start = Instant::now();
        loop {
            if let Some(rank) = state.aborted {
                return Err(CommunicationError::Aborted { rank });
            }
            if holds(&state) {
                return Ok(state);
            }
            if let Some(rank) = state.missing_and_gone() {
                return Err(CommunicationError::Aborted { rank });
            }
            let waited = start.elapsed();
            let Some(left) = self.timeout.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return Err(state.silent(waited));
            };
            let changed = &self.group.changed;
            (state, _) = changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.group.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A rank that has been dropped before it made the current call.
    fn missing_and_gone(&self) -> Option<usize> {
        (0..self.gone.len()).find(|&rank| self.gone[rank] && self.sent[rank].is_none())
    }

    /// The error of a rank that has waited for too long.
    fn silent(&self, waited: Duration) -> CommunicationError {
        let missing = self.sent.iter().position(Option::is_none);
        let whose = missing.map_or("a rank".to_owned(), |rank| format!("rank {rank}"));
        CommunicationError::Silent { whose, seconds: waited.as_secs() }
    }
}

impl Communicator for ThreadRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn exchange(
        &self,
        send: &[u8],
        send_parts: &[Range<usize>],
        receive: &mut [u8],
        receive_lens: &[usize],
    ) -> Result<(), CommunicationError> {
        let all = self.share(Sent { bytes: send.to_vec(), parts: send_parts.to_vec() })?;
        fill(
            receive,
            receive_lens,
            all.iter().map(|sent| &sent.bytes[sent.parts[self.rank].clone()]),
        );
        Ok(())
    }

    fn gather_in_place(&self, bytes: &mut [u8], lens: &[usize]) -> Result<(), CommunicationError> {
        let start: usize = lens[..self.rank].iter().sum();
        let own = bytes[start..][..lens[self.rank]].to_vec();
        let all = self.share(Sent { bytes: own, parts: Vec::new() })?;
        fill(bytes, lens, all.iter().map(|sent| sent.bytes.as_slice()));
        Ok(())
    }

    fn broadcast(&self, root: usize, bytes: &mut [u8]) -> Result<(), CommunicationError> {
        let sent = if self.rank == root { bytes.to_vec() } else { Vec::new() };
        let all = self.share(Sent { bytes: sent, parts: Vec::new() })?;
        bytes.copy_from_slice(&all[root].bytes);
        Ok(())
    }

    fn abort(&self, _: i32) {
        self.lock().aborted.get_or_insert(self.rank);
        self.group.changed.notify_all();
    }
}

impl Drop for ThreadRank {
    fn drop(&mut self) {
        self.lock().gone[self.rank] = true;
        self.group.changed.notify_all();
    }
}

/// Fills `receive` with `parts`, one after the other.
///
/// # Panics
/// If a part is not as long as `lens` says: ranks disagree about a call.
fn fill<'a>(receive: &mut [u8], lens: &[usize], parts: impl Iterator<Item = &'a [u8]>) {
    let mut rest = receive;
    for (&len, part) in lens.iter().zip(parts) {
        let (here, after) = rest.split_at_mut(len);
        here.copy_from_slice(part);
        rest = after;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::thread;

    use super::*;

    /// Runs `f` on each rank of a group; the results by rank.
    pub(crate) fn on_all<R: Send>(size: usize, f: impl Fn(ThreadRank) -> R + Sync) -> Vec<R> {
        thread::scope(|scope| {
            let f = &f;
            let threads: Vec<_> =
                ranks(size).into_iter().map(|rank| scope.spawn(move || f(rank))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    #[test]
    fn parts_of_different_lengths_arrive_in_the_order_of_the_ranks() {
        // Rank a sends b + 1 bytes of value 10 a + b to rank b.
        let received = on_all(3, |rank| {
            let me = rank.rank() as u8;
            let send: Vec<u8> =
                (0..3).flat_map(|to| vec![10 * me + to; usize::from(to) + 1]).collect();
            let mut receive = vec![0; 3 * (usize::from(me) + 1)];
            for _ in 0..100 {
                let lens = vec![usize::from(me) + 1; 3];
                rank.exchange(&send, &[0..1, 1..3, 3..6], &mut receive, &lens).unwrap();
            }
            receive
        });
        assert_eq!(
            received,
            [vec![0, 10, 20], vec![1, 1, 11, 11, 21, 21], vec![2, 2, 2, 12, 12, 12, 22, 22, 22]]
        );
    }

    #[test]
    fn all_ranks_gather_the_same_and_one_can_tell_all() {
        let gathered = on_all(4, |rank| {
            let me = rank.rank() as u8;
            let mut receive = vec![0; 6];
            rank.gather(&vec![me; usize::from(me)], &mut receive, &[0, 1, 2, 3]).unwrap();
            let mut told = vec![me; 2];
            rank.broadcast(2, &mut told).unwrap();
            (receive, told)
        });
        assert!(gathered.iter().all(|got| *got == (vec![1, 2, 2, 3, 3, 3], vec![2, 2])));
    }

    #[test]
    fn a_rank_that_does_not_answer_is_named_to_those_that_wait() {
        let timeout = Duration::from_secs(1);
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let mut group = ranks_with_timeout(3, timeout);
        let silent = group.remove(2);
        let stopped = thread::spawn(move || {
            let _ = wait.recv();
            drop(silent);
        });
        let waiting =
            group.into_iter().map(|rank| thread::spawn(move || rank.broadcast(0, &mut [0])));
        for thread in waiting.collect::<Vec<_>>() {
            let expected = CommunicationError::Silent { whose: "rank 2".to_owned(), seconds: 1 };
            assert_eq!(thread.join().unwrap(), Err(expected));
        }
        drop(end);
        stopped.join().unwrap();
    }

    #[test]
    fn a_rank_that_ends_or_aborts_is_named_to_those_that_wait() {
        for ends in [|rank: ThreadRank| drop(rank), |rank: ThreadRank| rank.abort(1)] {
            let errors = on_all(3, |rank| {
                if rank.rank() == 1 {
                    ends(rank);
                    return None;
                }
                rank.broadcast(0, &mut [0]).err()
            });
            let aborted = Some(CommunicationError::Aborted { rank: 1 });
            assert_eq!(errors, [aborted.clone(), None, aborted]);
        }
    }
}
