//! A limit for the time that this rank waits for the other ranks.
//!
//! A call of MPI returns when all ranks have come to it, and nothing interrupts it. A rank that is stopped (SIGSTOP, a
//! debugger), or waits for a disk that does not answer, neither comes nor ends, so that the launcher notices nothing.
//! A thread of each rank therefore watches how long a call takes, and ends the job after the limit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::launcher::Variables;
use super::peers::Peers;
use crate::communicator::TIMEOUT;
use crate::error::CommunicationError;

/// The environment variable with the limit in seconds; 0 for none.
pub(super) const LIMIT: &str = "TEALIGHT_RANK_TIMEOUT";

/// The limit that the environment sets; `None` for none.
///
/// # Errors
/// If the variable is no number of seconds.
pub(super) fn limit(variables: Variables<'_>) -> Result<Option<Duration>, CommunicationError> {
    let Some(text) = variables(LIMIT) else { return Ok(Some(TIMEOUT)) };
    let seconds = text.to_str().and_then(|text| text.parse().ok()).ok_or_else(|| {
        let text = text.to_string_lossy();
        CommunicationError::Launch(format!("`{LIMIT}` = {text:?} is no number of seconds"))
    })?;
    Ok((seconds > 0).then(|| Duration::from_secs(seconds)))
}

/// Whether this rank is in a call.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// How often a call has begun or returned: odd during a call. There is one at a time.
    n_changes: AtomicU64,
}

impl Watch {
    /// Runs `call`, whose time is limited.
    pub(super) fn over<R>(&self, call: impl FnOnce() -> R) -> R {
        self.n_changes.fetch_add(1, Ordering::Relaxed);
        let result = call();
        self.n_changes.fetch_add(1, Ordering::Relaxed);
        result
    }

    /// The call that the rank is in, if it is in one.
    fn call(&self) -> Option<u64> {
        let n = self.n_changes.load(Ordering::Relaxed);
        (n % 2 == 1).then_some(n)
    }

    /// Waits until a call has taken `limit` and `is_enough` agrees, which is asked again each time with the time that
    /// the call has taken.
    ///
    /// Time is counted in naps, so that this process may itself be stopped for any time, as Slurm does with a whole job
    /// that it suspends.
    fn wait(&self, limit: Duration, mut is_enough: impl FnMut(Duration) -> bool) {
        let nap = NAP.min(limit / 10);
        let (mut last, mut waited) = (None, Duration::ZERO);
        loop {
            thread::sleep(nap);
            let now = self.call();
            waited = if now.is_some() && now == last { waited + nap } else { Duration::ZERO };
            last = now;
            if waited >= limit && is_enough(waited) {
                return;
            }
        }
    }
}

/// The time between two looks at a call.
const NAP: Duration = Duration::from_secs(1);

/// The time for which a rank that sees no stopped one on its computer leaves the message to a rank that sees one.
const GRACE: Duration = Duration::from_secs(5);

/// Starts a thread that calls `end` once a call under `watch` has taken longer than `limit`.
pub(super) fn start(
    watch: Arc<Watch>,
    limit: Duration,
    peers: Peers,
    end: impl FnOnce(CommunicationError) + Send + 'static,
) {
    thread::spawn(move || {
        let mut stopped = Vec::new();
        let mut seconds = 0;
        watch.wait(limit, |waited| {
            stopped = peers.stopped();
            seconds = waited.as_secs();
            !stopped.is_empty() || waited >= limit + GRACE
        });
        end(CommunicationError::Silent { whose: peers.name(&stopped), seconds });
    });
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::sync::mpsc;

    use super::*;

    fn limited(value: &str) -> Result<Option<Duration>, CommunicationError> {
        limit(&|name| (name == LIMIT).then(|| OsString::from(value)))
    }

    #[test]
    fn the_limit_is_a_number_of_seconds() {
        assert_eq!(limit(&|_| None), Ok(Some(TIMEOUT)));
        assert_eq!(limited("7"), Ok(Some(Duration::from_secs(7))));
        assert_eq!(limited("0"), Ok(None));
        for wrong in ["", "1h", "-1"] {
            let error = limited(wrong).unwrap_err().to_string();
            assert_eq!(
                error,
                format!("`TEALIGHT_RANK_TIMEOUT` = {wrong:?} is no number of seconds")
            );
        }
    }

    #[test]
    fn a_call_that_takes_too_long_ends_the_job_and_many_short_ones_do_not() {
        let limit = Duration::from_millis(200);
        let watch = Arc::new(Watch::default());
        let (ended, error) = mpsc::channel();
        let peers = Peers::new(0, &[(5, 0), (7, 0)]);
        start(watch.clone(), limit, peers, move |error| ended.send(error).unwrap());
        for _ in 0..20 {
            watch.over(|| thread::sleep(limit / 5));
        }
        assert_eq!(error.try_recv().ok(), None);
        let error = watch.over(|| error.recv_timeout(Duration::from_mins(1))).unwrap();
        assert_eq!(
            error.to_string(),
            "rank 1 has not answered for 5 s (`TEALIGHT_RANK_TIMEOUT` sets the limit)"
        );
    }
}
