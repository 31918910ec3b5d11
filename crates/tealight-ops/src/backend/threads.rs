//! A thread pool for loops of a few microseconds.
//!
//! A step of a small model consists of some hundred such loops in quick succession. Waking a sleeping thread takes
//! longer than one of them. The threads of a team therefore spin for a moment after a loop, and sleep only if no
//! other loop has started by then. The calling thread takes part in its loop, and waits only for threads that have
//! entered it.
//!
//! ```text
//! indices of a loop   0 1 2 3 | 4 5 6 7 | 8 9 ..      a part for each thread
//! each thread         its own part first, then indices that are left in other parts
//! ```
//!
//! The parts are the same in every loop over the same rows, so that a thread finds its rows in its own cache.

mod handover;

use std::cell::RefCell;
use std::env::{self, VarError};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::{self, JoinHandle};

use handover::Shared;

/// The environment variable that sets the number of threads. Rayon reads it, too.
const VARIABLE: &str = "RAYON_NUM_THREADS";
/// The most threads that the variable may ask for. The limit keeps a typing error from exhausting the machine.
pub const MOST_GIVEN: usize = 1024;

/// The number of threads that `RAYON_NUM_THREADS` asks for; `None` if it is not set, or empty. An invalid value is
/// reported by [`check`] and has no effect here.
pub fn given() -> Option<usize> {
    env::var(VARIABLE).ok().and_then(|value| parse(&value).ok().flatten())
}

/// Checks the environment variable `RAYON_NUM_THREADS`.
///
/// # Errors
/// If it is neither empty nor an integer from 1 to 1024.
pub fn check() -> Result<(), String> {
    match env::var(VARIABLE) {
        Ok(value) => parse(&value).map(|_| ()),
        Err(VarError::NotUnicode(_)) => Err(format!("{VARIABLE} is not text")),
        Err(VarError::NotPresent) => Ok(()),
    }
}

/// The number that a value of the variable stands for; `None` if it is empty.
fn parse(value: &str) -> Result<Option<usize>, String> {
    if value.is_empty() {
        return Ok(None);
    }
    let n_threads = value.parse::<usize>().ok().filter(|n| (1..=MOST_GIVEN).contains(n));
    let rule = || format!("{VARIABLE}={value}: expected an integer from 1 to {MOST_GIVEN}");
    n_threads.map(Some).ok_or_else(rule)
}

/// The number of threads that share the loops of the calling thread.
///
/// Inside [`with`], it is the argument of [`with`]; elsewhere the number that is [`given`], or that of the processor's
/// threads.
pub fn count() -> usize {
    Current::get(|team| team.map_or(1, Team::len))
}

/// Runs `f`. Its loops are shared by a new team of `n_threads`: the calling thread and n − 1 others.
pub fn with<R>(n_threads: usize, f: impl FnOnce() -> R) -> R {
    let team = Current::Team(Rc::new(Team::new(n_threads)));
    let _former = FormerTeam(CURRENT.replace(team));
    f()
}

/// Runs `work` on every block, on the threads of the caller's team; the results are in the order of the blocks.
///
/// The scheduling code is not generic. If it were, each loop would compile its own copy, together half of this
/// crate's code.
///
/// # Panics
/// If `work` does.
pub fn map<B: Send, R: Send>(blocks: Vec<B>, work: &(dyn Fn(B) -> R + Sync)) -> Vec<R> {
    let places: Vec<_> = blocks.into_iter().map(|block| Mutex::new((Some(block), None))).collect();
    for_each(places.len(), &|i| {
        let mut place = places[i].lock().expect("invariant: a place has one visitor");
        place.1 = place.0.take().map(work);
    });
    let results = places.into_iter().map(|place| {
        let (_, result) = place.into_inner().expect("invariant: a panic ends the loop");
        result.expect("invariant: every place has been visited")
    });
    results.collect()
}

/// Runs `work(0)` to `work(n − 1)`, each once and in any order, on the threads of the caller's team. If the team is
/// busy, the caller runs all of them.
fn for_each(n: usize, work: &(dyn Fn(usize) + Sync)) {
    Current::get(|team| match team {
        Some(team) if n > 1 && team.len() > 1 && team.try_acquire() => {
            let _busy = BusyTeam(&team.busy);
            team.shared.run(n, work, |place| team.unpark(place));
        }
        _ => (0..n).for_each(work),
    });
}

/// The team of a thread.
#[derive(Clone)]
enum Current {
    /// The team of the process.
    Global,
    /// None, as the thread is a member of a team.
    Alone,
    Team(Rc<Team>),
}

thread_local! {
    static CURRENT: RefCell<Current> = const { RefCell::new(Current::Global) };
}

static GLOBAL: LazyLock<Team> = LazyLock::new(|| {
    let found = || thread::available_parallelism().map_or(1, usize::from);
    Team::new(given().unwrap_or_else(found))
});

impl Current {
    fn get<R>(f: impl FnOnce(Option<&Team>) -> R) -> R {
        let current = CURRENT.with_borrow(Clone::clone);
        f(match &current {
            Self::Global => Some(&GLOBAL),
            Self::Alone => None,
            Self::Team(team) => Some(team),
        })
    }
}

/// Restores the former team when it is dropped.
struct FormerTeam(Current);

impl Drop for FormerTeam {
    fn drop(&mut self) {
        CURRENT.set(self.0.clone());
    }
}

/// Frees a team for the next loop when it is dropped.
struct BusyTeam<'a>(&'a AtomicBool);

impl Drop for BusyTeam<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The threads besides the caller.
struct Team {
    shared: Arc<Shared>,
    others: Vec<JoinHandle<()>>,
    /// Whether a loop is running: one at a time.
    busy: AtomicBool,
}

impl Team {
    fn new(n_threads: usize) -> Self {
        /// More threads than any machine has, and fewer than a state can count.
        const MOST: usize = 4096;
        let n_threads = n_threads.clamp(1, MOST);
        let shared = Arc::new(Shared::new(n_threads));
        let start = |place| {
            let shared = shared.clone();
            let name = format!("tealight-{place}");
            thread::Builder::new().name(name).spawn(move || {
                CURRENT.set(Current::Alone);
                shared.serve(place);
            })
        };
        // If a thread cannot be started, the team is smaller.
        let others = (1..n_threads).map_while(|place| start(place).ok()).collect();
        Self { shared, others, busy: AtomicBool::new(false) }
    }

    fn len(&self) -> usize {
        self.others.len() + 1
    }

    fn try_acquire(&self) -> bool {
        !self.busy.swap(true, Ordering::Acquire)
    }

    /// Wakes the thread at `place`, from 1, if it has been started.
    fn unpark(&self, place: usize) {
        if let Some(thread) = self.others.get(place - 1) {
            thread.thread().unpark();
        }
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.finish();
        for thread in self.others.drain(..) {
            thread.thread().unpark();
            // Cannot fail: `serve` catches panics of the loops.
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use super::*;

    fn visits(n: usize) -> Vec<usize> {
        let visits: Vec<AtomicUsize> = (0..n).map(|_| AtomicUsize::new(0)).collect();
        for_each(n, &|i| {
            visits[i].fetch_add(1, Ordering::Relaxed);
        });
        visits.into_iter().map(AtomicUsize::into_inner).collect()
    }

    #[test]
    fn numbers_of_threads_are_checked() {
        assert_eq!(parse(""), Ok(None));
        for (value, n) in [("1", 1), ("16", 16), ("1024", 1024)] {
            assert_eq!(parse(value), Ok(Some(n)));
        }
        for value in ["abc", "0", "-4", " 4", "1.5", "1025", "18446744073709551616"] {
            let rule = format!("RAYON_NUM_THREADS={value}: expected an integer from 1 to 1024");
            assert_eq!(parse(value), Err(rule));
        }
    }

    #[test]
    fn every_index_is_visited_once_and_all_is_done_when_the_loop_ends() {
        for n_threads in [1, 2, 3, 8] {
            with(n_threads, || {
                assert_eq!(count(), n_threads);
                for n in [0, 1, 2, 3, 7, 100, 1_000] {
                    assert_eq!(visits(n), vec![1; n]);
                }
            });
        }
    }

    #[test]
    fn many_short_loops_follow_each_other() {
        with(3, || {
            let sum = AtomicUsize::new(0);
            for _ in 0..2_000 {
                for_each(5, &|i| {
                    sum.fetch_add(i, Ordering::Relaxed);
                });
            }
            assert_eq!(sum.into_inner(), 20_000);
        });
    }

    #[test]
    fn threads_that_have_fallen_asleep_are_woken() {
        with(2, || {
            for _ in 0..3 {
                thread::sleep(Duration::from_millis(30));
                let others = AtomicUsize::new(0);
                let caller = thread::current().id();
                // The loop lasts until the other thread has woken and takes part.
                for_each(2, &|_| {
                    let began = std::time::Instant::now();
                    if thread::current().id() != caller {
                        others.fetch_add(1, Ordering::Relaxed);
                    }
                    while others.load(Ordering::Relaxed) == 0
                        && began.elapsed() < Duration::from_secs(20)
                    {
                        thread::yield_now();
                    }
                });
                assert!(others.into_inner() > 0);
            }
        });
    }

    #[test]
    fn a_loop_within_a_loop_is_done_by_whoever_meets_it() {
        with(3, || {
            let sum = AtomicUsize::new(0);
            for_each(10, &|i| {
                for_each(10, &|j| {
                    sum.fetch_add(10 * i + j, Ordering::Relaxed);
                });
            });
            assert_eq!(sum.into_inner(), 99 * 50);
        });
    }

    #[test]
    fn loops_of_several_callers_do_not_mix() {
        let caller = || (0..200).all(|_| visits(64) == vec![1; 64]);
        let callers: Vec<_> = (0..4).map(|_| thread::spawn(caller)).collect();
        assert!(callers.into_iter().all(|caller| caller.join().unwrap()));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_team_goes_on() {
        with(3, || {
            for bad in [0, 50, 99] {
                let run = || for_each(100, &|i| assert_ne!(i, bad, "not this one"));
                let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
                let message = panic.downcast_ref::<String>().unwrap();
                assert!(message.contains("not this one"), "{message}");
                assert_eq!(visits(100), vec![1; 100]);
            }
        });
    }

    #[test]
    fn the_team_before_comes_back() {
        let before = count();
        with(5, || with(2, || assert_eq!(count(), 2)));
        assert_eq!(count(), before);
        with(4, || for_each(8, &|_| assert!([1, 4].contains(&count()))));
    }
}
