//! Sums gradients over ranks.
//!
//! ```text
//!            rank 0     rank 1                        rank 0     rank 1
//! bucket     a0 b0      a1 b1     exchange, add  →    a0+a1      b0+b1     gather  →  a0+a1 b0+b1 on both
//! ```
//!
//! MPI moves bytes in both steps; the additions are ours, in the order of [`PairwiseSum`], whichever rank makes them. A
//! rank sends and receives 2·4P·(R−1)/R bytes for P parameters and R ranks, if its micro-batches make up one subtree.
//! A thread of its own makes the calls, so that buckets travel while the backward pass continues.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope};

use candle_core::{CpuStorage, Device, Storage, Tensor};
use tealight_ops::profile::{Phase, timed};

use super::plan::{Bucket, Plan};
use super::tree::{Node, PairwiseSum, nodes_within};

use crate::communicator::ranks::Ranks;
use crate::communicator::wire::Wire;
use crate::error::Result;

/// In the profile, the part of the exchange that nothing hides.
pub const WAITING: &str = "wait for gradients";

/// The most elements that a rank sends or receives in one call.
const MAX_LEN: usize = 1 << 28;

/// The partial sums of one parameter's gradient, from left to right in the tree. An absent gradient counts as −0, which
/// changes no sum.
pub(crate) type Partials = Vec<Option<Tensor>>;

/// Sums the gradients of one step at a time.
#[derive(Debug)]
pub(crate) struct GradientExchange {
    plan: Arc<Plan>,
    /// How many partial sums this rank has of each gradient.
    n_partials: usize,
    jobs: Sender<Job>,
    sums: Receiver<Result<Vec<f32>>>,
    /// By bucket, what has been offered of it.
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
        n_micro_batches: u64,
        wire: Wire,
        ranks: &Ranks,
        keeps: Keeps,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<Self> {
        let (jobs, to_do) = channel();
        let (done, sums) = channel();
        let order = Order::new(n_micro_batches, ranks.size());
        let n_partials = order.n_partials[ranks.rank()];
        let summer = Summer { plan: plan.clone(), order, wire, ranks: ranks.clone(), keeps };
        let thread = Builder::new().name("gradients".to_owned());
        let started = thread.spawn_scoped(scope, move || summer.run(&to_do, &done));
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

    /// Waits for all sums: by bucket, the elements that this rank keeps. Gradients that were not offered, because the
    /// pass failed, count as absent.
    pub(crate) fn finish(&mut self) -> Result<Vec<Vec<f32>>> {
        let plan = self.plan.clone();
        for bucket in &plan.buckets[self.n_sent..] {
            for (slot, &parameter) in bucket.parameters.iter().enumerate() {
                let (number, _) = plan.place(parameter);
                if self.offered[number].get(slot).is_some_and(Option::is_none) {
                    self.offer(parameter, vec![None; self.n_partials]);
                }
            }
        }
        let receive =
            || self.sums.recv().expect("invariant: the thread sends a result for each bucket");
        let sums =
            timed(WAITING, Phase::Other, || plan.buckets.iter().map(|_| receive()).collect());
        self.reset();
        sums
    }

    fn reset(&mut self) {
        self.offered =
            self.plan.buckets.iter().map(|bucket| vec![None; bucket.parameters.len()]).collect();
        self.n_sent = 0;
    }
}

/// Which sums a rank needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// All of them.
    All,
    /// Those of its own shard, as it alone updates these parameters.
    OwnShard,
}

/// The order in which the partial sums of all ranks are added.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    /// By rank, how many partial sums it sends.
    n_partials: Vec<usize>,
    /// Additions, one after the other: the second of these partial sums is added to the first. The total ends up in
    /// the first of all.
    additions: Vec<(usize, usize)>,
}

impl Order {
    fn new(n_micro_batches: u64, n_ranks: usize) -> Self {
        let len = n_micro_batches / n_ranks as u64;
        let of_rank = |rank| nodes_within(rank * len..(rank + 1) * len, n_micro_batches);
        let nodes: Vec<Vec<Range<u64>>> = (0..n_ranks as u64).map(of_rank).collect();
        let n_partials = nodes.iter().map(Vec::len).collect();
        let (mut additions, mut sum) = (Vec::new(), PairwiseSum::new(n_micro_batches));
        for (number, leaves) in nodes.into_iter().flatten().enumerate() {
            let add = |left, right| {
                additions.push((left, right));
                Ok(left)
            };
            sum.push(Node { leaves, sum: number }, add).expect("invariant: nothing can fail");
        }
        Self { n_partials, additions }
    }
}

/// The thread that makes the calls.
struct Summer {
    plan: Arc<Plan>,
    order: Order,
    wire: Wire,
    ranks: Ranks,
    keeps: Keeps,
}

impl Summer {
    fn run(&self, jobs: &Receiver<Job>, sums: &Sender<Result<Vec<f32>>>) {
        for Job { bucket, partials } in jobs {
            let sum = self.sum(&self.plan.buckets[bucket], &partials);
            if sums.send(sum).is_err() {
                return;
            }
        }
    }

    /// The sums of a bucket over all ranks.
    fn sum(&self, bucket: &Bucket, partials: &[Partials]) -> Result<Vec<f32>> {
        let (rank, keeps_all) = (self.ranks.rank(), self.keeps == Keeps::All);
        let own = (0..self.order.n_partials[rank])
            .map(|partial| flatten(bucket, partials.iter().map(|slot| slot[partial].as_ref())));
        let own = own.collect::<Result<Vec<_>>>()?;
        let mut sums = vec![0.; if keeps_all { bucket.len() } else { bucket.shards[rank] }];
        for part in self.parts(bucket) {
            let shard = self.sum_shard(&own, bucket, &part)?;
            if !keeps_all {
                sums[part[rank].start - bucket.shard(rank).start..][..shard.len()]
                    .copy_from_slice(&shard);
                continue;
            }
            let lens: Vec<_> = part.iter().map(ExactSizeIterator::len).collect();
            let mut gathered = self.wire.gather(&self.ranks, &shard, &lens)?.into_iter();
            for range in part {
                let len = range.len();
                sums[range].iter_mut().zip(gathered.by_ref().take(len)).for_each(|(to, x)| *to = x);
            }
        }
        Ok(sums)
    }

    /// The parts in which a bucket travels, so that no call moves too much: for each, the elements of each rank's
    /// shard.
    fn parts(&self, bucket: &Bucket) -> Vec<Vec<Range<usize>>> {
        let largest = bucket.shards.iter().copied().max().unwrap_or(0);
        let n_partials: usize = self.order.n_partials.iter().sum();
        let len = (MAX_LEN / n_partials).max(1);
        let part = |start: usize| {
            let of_rank = |rank| {
                let shard = bucket.shard(rank);
                let start = (shard.start + start).min(shard.end);
                start..(start + len).min(shard.end)
            };
            (0..self.ranks.size()).map(of_rank).collect()
        };
        (0..largest).step_by(len).map(part).collect()
    }

    /// The sum over all ranks of this rank's shard, from its own partial sums and those that the others send.
    fn sum_shard(
        &self,
        own: &[Vec<f32>],
        bucket: &Bucket,
        part: &[Range<usize>],
    ) -> Result<Vec<f32>> {
        let Order { n_partials, additions } = &self.order;
        let send_lens: Vec<_> = part.iter().map(|range| range.len() * own.len()).collect();
        let len = part[self.ranks.rank()].len();
        let receive_lens: Vec<_> = n_partials.iter().map(|n| n * len).collect();
        let is_whole = own.len() == 1 && send_lens.iter().sum::<usize>() == bucket.len();
        let packed: Vec<f32>;
        let send = if is_whole {
            &own[0]
        } else {
            let parts = part.iter().flat_map(|range| own.iter().map(|sum| &sum[range.clone()]));
            packed = parts.collect::<Vec<_>>().concat();
            &packed
        };
        let mut received = self.wire.exchange(&self.ranks, send, &send_lens, &receive_lens)?;
        add_up(&mut received, len, additions);
        received.truncate(len);
        Ok(received)
    }
}

/// Adds up partial sums of `len` elements each, in the order of `additions`; the total is the first of them.
fn add_up(partials: &mut [f32], len: usize, additions: &[(usize, usize)]) {
    /// Elements that stay in the cache from one addition to the next.
    const BLOCK: usize = 4096;
    for start in (0..len).step_by(BLOCK) {
        let n = BLOCK.min(len - start);
        for &(left, right) in additions {
            let (before, after) = partials.split_at_mut(right * len);
            let (left, right) = (&mut before[left * len + start..][..n], &after[start..][..n]);
            for (sum, &term) in left.iter_mut().zip(right) {
                *sum += term;
            }
        }
    }
}

/// The elements of a bucket, one after the other.
fn flatten<'a>(
    bucket: &Bucket,
    tensors: impl Iterator<Item = Option<&'a Tensor>>,
) -> Result<Vec<f32>> {
    let mut elements = Vec::with_capacity(bucket.len());
    for (&size, tensor) in bucket.sizes.iter().zip(tensors) {
        match tensor {
            Some(tensor) => append(&mut elements, tensor)?,
            None => elements.resize(elements.len() + size, -0.),
        }
    }
    Ok(elements)
}

/// Appends the elements of `tensor`, in f32.
fn append(elements: &mut Vec<f32>, tensor: &Tensor) -> Result<()> {
    let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(candle_core::DType::F32)?.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(CpuStorage::F32(values)) = &*storage else {
        unreachable!("invariant: it is on the CPU, in f32")
    };
    elements.extend_from_slice(&values[layout.start_offset()..][..tensor.elem_count()]);
    Ok(())
}
