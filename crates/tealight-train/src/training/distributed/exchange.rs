//! Sums gradients over ranks.
//!
//! ```text
//!            rank 0     rank 1                        rank 0     rank 1
//! bucket     a0 b0      a1 b1     exchange, add  →    a0+a1      b0+b1     gather  →  a0+a1 b0+b1 on both
//! ```
//!
//! A transport moves numbers in both steps; the additions are ours, in the order of `PairwiseSum`, whichever rank makes them. A
//! rank sends and receives 2·4P·(R−1)/R bytes for P parameters and R ranks, if its micro-batches make up one subtree.
//! A thread of its own makes the calls, so that buckets travel while the backward pass continues.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope};

use candle_core::Tensor;
use tealight_ops::profile::{Phase, timed};

use super::plan::Plan;
use super::summer::{Partials, Summer};
use crate::error::{CommunicationError, Error, Result};

/// In the profile, the part of the exchange that nothing hides.
pub const WAITING: &str = "wait for gradients";

/// Sums the gradients of one step at a time.
#[derive(Debug)]
pub(crate) struct GradientExchange {
    plan: Arc<Plan>,
    /// How many partial sums this rank has of each gradient.
    n_partials: usize,
    jobs: Sender<Job>,
    sums: Receiver<Result<Tensor>>,
    /// By bucket and slot, the partial sums that wait until the bucket is complete; `None` for a gradient that is not final.
    offered: Vec<Vec<Option<Partials>>>,
    /// Buckets that have been sent.
    n_sent: usize,
}

/// A bucket that is to be summed: by slot.
struct Job {
    bucket: usize,
    partials: Vec<Partials>,
}

impl GradientExchange {
    /// Starts the thread, which ends when the exchange is dropped.
    pub(crate) fn start<'scope>(
        plan: Arc<Plan>,
        summer: Summer,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<Self> {
        let (jobs, to_do) = channel();
        let (done, sums) = channel();
        let n_partials = summer.n_partials();
        let (plan_there, thread) = (plan.clone(), Builder::new().name("gradients".to_owned()));
        let started = thread.spawn_scoped(scope, move || run(&summer, &plan_there, &to_do, &done));
        started.map_err(candle_core::Error::wrap)?;
        let mut exchange = Self { plan, n_partials, jobs, sums, offered: Vec::new(), n_sent: 0 };
        exchange.reset();
        Ok(exchange)
    }

    /// Passes the partial sums of a parameter's gradient, each parameter once in a step. A bucket is sent when it and
    /// those before it are complete, so that all ranks send them in one order.
    pub(crate) fn offer(&mut self, parameter: usize, partials: Partials) {
        let (bucket, slot) = self.plan.place(parameter);
        self.offered[bucket][slot] = Some(partials);
        while let Some(next) = self.offered.get_mut(self.n_sent)
            && next.iter().all(Option::is_some)
        {
            let partials = std::mem::take(next).into_iter().flatten().collect();
            // If the thread has ended, `finish` receives its error.
            let _ = self.jobs.send(Job { bucket: self.n_sent, partials });
            self.n_sent += 1;
        }
    }

    /// Whether all parameters of the step have been offered.
    pub(crate) fn is_complete(&self) -> bool {
        self.n_sent == self.plan.buckets.len()
    }

    /// Waits for all sums: by bucket, the elements that this rank needs. Gradients that were not offered, because the
    /// pass failed, count as absent.
    ///
    /// # Errors
    /// If communication fails; or if this rank cannot read its gradients, of which the others do not know.
    pub(crate) fn finish(&mut self) -> Result<Vec<Tensor>> {
        let plan = self.plan.clone();
        for bucket in &plan.buckets[self.n_sent..] {
            for (slot, &parameter) in bucket.parameters.iter().enumerate() {
                let (number, _) = plan.place(parameter);
                if self.offered[number].get(slot).is_some_and(Option::is_none) {
                    self.offer(parameter, vec![None; self.n_partials]);
                }
            }
        }
        let sums = timed(WAITING, Phase::Other, || self.receive());
        self.reset();
        sums
    }

    fn receive(&self) -> Result<Vec<Tensor>> {
        let mut sums = Vec::new();
        let mut failed = None;
        for _ in &self.plan.buckets {
            match self.sums.recv() {
                Ok(Ok(of_bucket)) => sums.push(of_bucket),
                Ok(Err(error @ Error::Communication(_))) => return Err(error),
                Ok(Err(error)) => failed = Some(error),
                Err(_) => return Err(CommunicationError::Ended.into()),
            }
        }
        failed.map_or(Ok(sums), Err)
    }

    fn reset(&mut self) {
        self.offered =
            self.plan.buckets.iter().map(|bucket| vec![None; bucket.parameters.len()]).collect();
        self.n_sent = 0;
    }
}

/// Sums one bucket after the other, as they arrive.
fn run(summer: &Summer, plan: &Plan, jobs: &Receiver<Job>, sums: &Sender<Result<Tensor>>) {
    for Job { bucket, partials } in jobs {
        let sum = summer.sum(&plan.buckets[bucket], &partials);
        let is_last = matches!(sum, Err(Error::Communication(_)));
        if sums.send(sum).is_err() || is_last {
            return;
        }
    }
}
