//! The protocol by which a loop is handed to the threads of a team and completed.
//!
//! ```text
//! caller           publish ── wake ── claim indices ── close ── wait until no thread is inside
//! other threads    wait or sleep ──── enter ── claim indices ── leave
//! ```
//!
//! One number, the state, says which loop it is, whether threads may enter, and how many are inside.
//! `scripts/loom.sh` checks the protocol under all interleavings of two and three threads.

#![expect(
    unsafe_code,
    reason = "long-lived threads borrow the body of a loop, and release it before the loop returns"
)]

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sync::{
    AtomicBool, AtomicU64, AtomicUsize, Ordering, UnsafeCell, fence, park, spin_loop, yield_now,
};

/// The primitives that the model checker replaces.
#[cfg(not(all(test, loom)))]
mod sync {
    pub(super) use std::hint::spin_loop;
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub(super) use std::thread::{park, yield_now};

    /// `std::cell::UnsafeCell` with the interface of loom's.
    pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        pub(super) fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        pub(super) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        pub(super) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}

#[cfg(all(test, loom))]
mod sync {
    pub(super) use loom::cell::UnsafeCell;
    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    pub(super) use loom::thread::{park, yield_now};
}

#[derive(Clone, Copy)]
struct Loop {
    n: usize,
    work: &'static (dyn Fn(usize) + Sync),
}

/// Aligned to a pair of cache lines, which processors fetch together, so that threads do not share lines.
#[repr(align(128))]
struct OwnCacheLines<T>(T);

/// What the threads of a team share. Place 0 is the thread that shares out the loops.
pub(super) struct Shared {
    state: AtomicU64,
    /// The loop that is shared out while the state is open.
    current: UnsafeCell<Option<Loop>>,
    /// The next index of each thread's part.
    next: Box<[OwnCacheLines<AtomicUsize>]>,
    /// Whether a thread must be woken.
    asleep: Box<[OwnCacheLines<AtomicBool>]>,
    /// The first panic of a thread.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `current` is written by the one thread that shares out loops, while the state is closed
// and no thread is inside; others read it only while they are inside.
unsafe impl Sync for Shared {}
// SAFETY: as above; a loop's `work` is `Sync`.
unsafe impl Send for Shared {}

/// The number of the loop, whether threads may enter it, and how many are inside.
struct State;

impl State {
    const INSIDE: u64 = 0xffff;
    const OPEN: u64 = 1 << 16;
    const LOOP: u64 = 1 << 17;
    /// The team is being dropped.
    const OVER: u64 = u64::MAX;

    fn number(state: u64) -> u64 {
        state / Self::LOOP
    }
}

/// A loop that threads may enter, until this is dropped. Then it waits for those inside.
struct OpenLoop<'a>(&'a Shared);

impl Drop for OpenLoop<'_> {
    fn drop(&mut self) {
        /// Reads of the state before other processes may run.
        const PATIENCE: u32 = 1 << 12;
        let state = &self.0.state;
        state.fetch_and(!State::OPEN, Ordering::AcqRel);
        let mut looks = 0_u32;
        while state.load(Ordering::Acquire) & State::INSIDE != 0 {
            looks = looks.saturating_add(1);
            if looks < PATIENCE { spin_loop() } else { yield_now() }
        }
    }
}

impl Shared {
    pub(super) fn new(n_threads: usize) -> Self {
        Self {
            state: AtomicU64::new(0),
            current: UnsafeCell::new(None),
            next: (0..n_threads).map(|_| OwnCacheLines(AtomicUsize::new(0))).collect(),
            asleep: (0..n_threads).map(|_| OwnCacheLines(AtomicBool::new(false))).collect(),
            panic: Mutex::new(None),
        }
    }

    /// Shares out `work(0)` to `work(n − 1)` and takes part. `wake` unparks the thread at a place. Must not run
    /// twice at a time.
    ///
    /// # Panics
    /// If `work` does.
    pub(super) fn run(&self, n: usize, work: &(dyn Fn(usize) + Sync), wake: impl Fn(usize)) {
        // SAFETY: only the lifetime changes. `OpenLoop` waits, when it is dropped, for every thread
        // that has entered, and lets no other enter: `work` is not called after that.
        let work = unsafe {
            std::mem::transmute::<&(dyn Fn(usize) + Sync), &'static (dyn Fn(usize) + Sync)>(work)
        };
        self.panic().take();
        let opened = self.open(Loop { n, work });
        for (place, asleep) in self.asleep.iter().enumerate().take(n).skip(1) {
            if asleep.0.swap(false, Ordering::AcqRel) {
                wake(place);
            }
        }
        self.take_part(0, Loop { n, work });
        drop(opened);
        if let Some(panic) = self.panic().take() {
            resume_unwind(panic);
        }
    }

    /// Ends [`serve`](Self::serve) of all threads once they are awake.
    pub(super) fn finish(&self) {
        self.state.store(State::OVER, Ordering::Release);
    }

    /// Takes part in loops as the thread at `place`, until the end.
    pub(super) fn serve(&self, place: usize) {
        let mut seen = 0;
        while let Some(state) = self.wait(place, seen) {
            let entered =
                self.state.compare_exchange(state, state + 1, Ordering::AcqRel, Ordering::Relaxed);
            if entered.is_err() {
                // Another thread has entered or left, or the loop is over.
                continue;
            }
            seen = State::number(state);
            // SAFETY: written before the state was opened; not written again while this is inside.
            if let Some(current) = self.current.with(|current| unsafe { *current }) {
                let result = catch_unwind(AssertUnwindSafe(|| self.take_part(place, current)));
                if let Err(panic) = result {
                    self.panic().get_or_insert(panic);
                }
            }
            self.state.fetch_sub(1, Ordering::Release);
        }
    }

    fn panic(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send>>> {
        self.panic.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the part of the thread at `place` begins.
    fn part(&self, place: usize, n: usize) -> usize {
        n * place / self.next.len()
    }

    fn open(&self, next: Loop) -> OpenLoop<'_> {
        for (place, first) in self.next.iter().enumerate() {
            first.0.store(self.part(place, next.n), Ordering::Relaxed);
        }
        // SAFETY: the state is closed, and no thread is inside.
        self.current.with_mut(|current| unsafe { *current = Some(next) });
        let number = State::number(self.state.load(Ordering::Relaxed));
        self.state.store(((number + 1) * State::LOOP) | State::OPEN, Ordering::Release);
        // Either a thread that falls asleep sees this state, or the caller sees that it sleeps.
        fence(Ordering::SeqCst);
        OpenLoop(self)
    }

    /// Waits until a loop other than number `seen` is open, and returns the state; `None` when the team is dropped.
    fn wait(&self, place: usize, seen: u64) -> Option<u64> {
        /// Reads of the state in a row, about a tenth of a millisecond.
        const SPINS: u32 = if cfg!(loom) { 1 } else { 2_000 };
        /// Reads between which other processes may run, about a millisecond.
        const YIELDS: u32 = if cfg!(loom) { 0 } else { 1_000 };
        let mut looks = 0;
        loop {
            let state = self.state.load(Ordering::Acquire);
            if state == State::OVER {
                return None;
            }
            if state & State::OPEN != 0 && State::number(state) != seen {
                return Some(state);
            }
            looks += 1;
            if looks < SPINS {
                spin_loop();
            } else if looks < SPINS + YIELDS {
                yield_now();
            } else if looks == SPINS + YIELDS {
                // Reads the state once more after this, so that no loop is missed.
                self.asleep[place].0.store(true, Ordering::Release);
                fence(Ordering::SeqCst);
            } else {
                park();
                self.asleep[place].0.store(false, Ordering::Release);
                looks = 0;
            }
        }
    }

    /// Claims the indices of the part of `place`, and then what is left of the other parts.
    fn take_part(&self, place: usize, Loop { n, work }: Loop) {
        let n_parts = self.next.len();
        for part in (place..n_parts).chain(0..place) {
            let end = self.part(part + 1, n);
            loop {
                let i = self.next[part].0.fetch_add(1, Ordering::Relaxed);
                if i >= end {
                    break;
                }
                work(i);
            }
        }
    }
}

#[cfg(all(test, loom))]
mod tests {
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::{Shared, UnsafeCell};

    /// How often each index of a loop was visited, in cells that do not synchronise: loom reports a visit that is
    /// not ordered before the end of the loop.
    struct Visits(Vec<UnsafeCell<usize>>);

    // SAFETY: no two threads visit one index, which loom checks.
    unsafe impl Sync for Visits {}

    impl Visits {
        fn add(&self, i: usize) {
            // SAFETY: as above.
            self.0[i].with_mut(|visits| unsafe { *visits += 1 });
        }

        fn get(&self, i: usize) -> usize {
            // SAFETY: read when the loop is over, which loom checks.
            self.0[i].with(|visits| unsafe { *visits })
        }
    }

    /// Runs `work(i)` of `n_loops` loops of `n` indices each, in all interleavings up to a bound.
    fn check(
        n_threads: usize,
        n_loops: usize,
        n: usize,
        work: impl Fn(usize) + Copy + Send + Sync + 'static,
    ) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let shared = Arc::new(Shared::new(n_threads));
            let start = |place| {
                let shared = shared.clone();
                thread::spawn(move || shared.serve(place))
            };
            let others: Vec<_> = (1..n_threads).map(start).collect();
            for _ in 0..n_loops {
                let visits = Visits((0..n).map(|_| UnsafeCell::new(0)).collect());
                let visit = |i| {
                    work(i);
                    visits.add(i);
                };
                shared.run(n, &visit, |place| others[place - 1].thread().unpark());
                assert!((0..n).all(|i| visits.get(i) == 1));
            }
            shared.finish();
            for other in others {
                other.thread().unpark();
                other.join().unwrap();
            }
        });
    }

    #[test]
    fn every_index_is_visited_once_before_a_loop_ends() {
        check(2, 2, 2, |_| ());
        check(3, 1, 3, |_| ());
    }

    /// Index 0, which the caller claims, waits for index 1: if the other thread slept on, this would be a deadlock,
    /// which loom reports.
    #[test]
    fn a_thread_that_falls_asleep_is_woken() {
        loom::lazy_static! {
            static ref HAS_COME: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());
        }
        check(2, 1, 2, |i| {
            let mut has_come = HAS_COME.0.lock().unwrap();
            if i == 1 {
                *has_come = true;
                HAS_COME.1.notify_one();
            }
            while !*has_come {
                has_come = HAS_COME.1.wait(has_come).unwrap();
            }
        });
    }
}
