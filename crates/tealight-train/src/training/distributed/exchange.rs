//! Sums gradients over ranks.
//!
//! ```text
//!            rank 0     rank 1                        rank 0     rank 1
//! bucket     a0 b0      a1 b1     exchange, add  →    a0+a1      b0+b1     gather  →  a0+a1 b0+b1 on both
//! ```
//!
//! A transport moves numbers in both steps; the additions are ours, in the order of `PairwiseSum`, whichever rank makes
//! them. A rank sends and receives 2·4P·(R−1)/R bytes for P parameters and R ranks, if its micro-batches make up one
//! subtree. A thread of its own makes the calls, so that buckets travel while the backward pass continues. After the
//! pass, the thread of the pass makes those that are left.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, Scope};

use candle_core::Tensor;
use tealight_ops::profile::{Phase, timed};

use super::bucket_reducer::{BucketReducer, Partials};
use super::plan::Plan;
use crate::error::{CommunicationError, Error, Result};

/// In the profile, the part of the exchange that nothing hides.
pub const WAITING: &str = "wait for gradients";

/// Sums the gradients of one step at a time.
#[derive(Debug)]
pub(crate) struct GradientExchange {
    /// How many partial sums this rank has of each gradient.
    n_partials: usize,
    queue: Arc<Queue>,
    /// By bucket and slot, the partial sums that wait until the bucket is complete; `None` for a gradient that is not
    /// final.
    offered: Vec<Vec<Option<Partials>>>,
    /// Buckets that are in the queue or summed.
    n_sent: usize,
}

/// The buckets of a step that two threads sum, one bucket after the other.
#[derive(Debug)]
struct Queue {
    plan: Arc<Plan>,
    reducer: BucketReducer,
    /// Locked while a thread takes a bucket and sums it: all ranks sum buckets in one order.
    turn: Mutex<()>,
    state: Mutex<State>,
    /// A bucket has been added, or the queue is closed.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<Job>,
    /// By bucket.
    sums: Vec<Result<Tensor>>,
    is_closed: bool,
}

/// A bucket that is to be summed: by slot.
#[derive(Debug)]
struct Job {
    bucket: usize,
    partials: Vec<Partials>,
}

impl GradientExchange {
    /// Starts the thread, which ends when the exchange is dropped.
    pub(crate) fn start<'scope>(
        plan: Arc<Plan>,
        reducer: BucketReducer,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<Self> {
        let n_partials = reducer.n_partials();
        let queue = Arc::new(Queue {
            plan,
            reducer,
            turn: Mutex::default(),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let (there, thread) = (queue.clone(), Builder::new().name("gradients".to_owned()));
        let started = thread.spawn_scoped(scope, move || {
            while there.has_next() {
                there.sum_next();
            }
        });
        started.map_err(candle_core::Error::wrap)?;
        let mut exchange = Self { n_partials, queue, offered: Vec::new(), n_sent: 0 };
        exchange.reset();
        Ok(exchange)
    }

    /// Passes the partial sums of a parameter's gradient, each parameter once in a step. A bucket is sent when it and
    /// those before it are complete, so that all ranks send them in one order.
    pub(crate) fn offer(&mut self, parameter: usize, partials: Partials) {
        let (bucket, slot) = self.queue.plan.place(parameter);
        self.offered[bucket][slot] = Some(partials);
        while let Some(next) = self.offered.get_mut(self.n_sent)
            && next.iter().all(Option::is_some)
        {
            let partials = std::mem::take(next).into_iter().flatten().collect();
            self.queue.lock().jobs.push_back(Job { bucket: self.n_sent, partials });
            self.n_sent += 1;
            // `finish` follows the last bucket. It sums a small one faster than the other thread wakes up.
            if !self.is_complete() {
                self.queue.changed.notify_one();
            }
        }
    }

    /// Whether all parameters of the step have been offered.
    pub(crate) fn is_complete(&self) -> bool {
        self.n_sent == self.queue.plan.buckets.len()
    }

    /// All sums: by bucket, the elements that this rank needs. Gradients that were not offered, because the
    /// pass failed, count as absent.
    ///
    /// # Errors
    /// If communication fails; or if this rank cannot read its gradients, of which the others do not know.
    pub(crate) fn finish(&mut self) -> Result<Vec<Tensor>> {
        let plan = self.queue.plan.clone();
        for bucket in &plan.buckets[self.n_sent..] {
            for (slot, &parameter) in bucket.parameters.iter().enumerate() {
                let (number, _) = plan.place(parameter);
                if self.offered[number].get(slot).is_some_and(Option::is_none) {
                    self.offer(parameter, vec![None; self.n_partials]);
                }
            }
        }
        let sums = timed(WAITING, Phase::Other, || self.queue.finish());
        self.reset();
        sums
    }

    fn reset(&mut self) {
        let slots = self.queue.plan.buckets.iter().map(|bucket| bucket.parameters.len());
        self.offered = slots.map(|n| vec![None; n]).collect();
        self.n_sent = 0;
    }
}

impl Drop for GradientExchange {
    fn drop(&mut self) {
        self.queue.lock().is_closed = true;
        self.queue.changed.notify_one();
    }
}

impl Queue {
    /// Waits for a bucket; `false` when the queue is closed.
    fn has_next(&self) -> bool {
        let waits = |state: &mut State| state.jobs.is_empty() && !state.is_closed;
        let state = self.changed.wait_while(self.lock(), waits);
        !state.unwrap_or_else(PoisonError::into_inner).is_closed
    }

    /// Sums the next bucket. Returns `false` if the queue is empty, or if the other thread panicked while it summed a
    /// bucket.
    fn sum_next(&self) -> bool {
        let Ok(_turn) = self.turn.lock() else { return false };
        let Some(Job { bucket, partials }) = self.lock().take_next() else { return false };
        let sum = self.reducer.sum(&self.plan.buckets[bucket], &partials);
        self.lock().sums.push(sum);
        true
    }

    /// Sums what is left, after what the other thread has begun.
    fn finish(&self) -> Result<Vec<Tensor>> {
        while self.sum_next() {}
        let all = std::mem::take(&mut self.lock().sums);
        let (mut sums, mut failed) = (Vec::new(), None);
        for sum in all {
            match sum {
                Ok(of_bucket) => sums.push(of_bucket),
                Err(error @ Error::Communication(_)) => return Err(error),
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) => Err(error),
            None if sums.len() == self.plan.buckets.len() => Ok(sums),
            // The other thread has panicked.
            None => Err(CommunicationError::Ended.into()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The next bucket; none after communication has failed.
    fn take_next(&mut self) -> Option<Job> {
        if let Some(Err(Error::Communication(_))) = self.sums.last() {
            self.jobs.clear();
        }
        self.jobs.pop_front()
    }
}
