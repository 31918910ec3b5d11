//! Sums gradients over ranks.
//!
//! ```text
//!            rank 0     rank 1                        rank 0     rank 1
//! bucket     a0 b0      a1 b1     exchange, add  →    a0+a1      b0+b1     gather  →  a0+a1 b0+b1 on both
//! ```
//!
//! MPI moves bytes in both steps; the additions are ours, in the order of `PairwiseSum`, whichever rank makes them. A
//! rank sends and receives 2·4P·(R−1)/R bytes for P parameters and R ranks, if its micro-batches make up one subtree.
//! A thread of its own makes the calls, so that buckets travel while the backward pass continues.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope};

use candle_core::{CpuStorage, DType, Device, Storage, Tensor};
use tealight_ops::profile::{Phase, timed};

use super::plan::{Bucket, Plan};
use super::tree::{Node, PairwiseSum, nodes_within};
use crate::communicator::ranks::Ranks;
use crate::communicator::wire::Wire;
use crate::error::{CommunicationError, Error, Result};

/// In the profile, the part of the exchange that nothing hides.
pub const WAITING: &str = "wait for gradients";

/// The most elements that a rank receives in one call; it sends less than twice as many. MPI counts bytes in 32 bits.
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
        let (plan_there, ranks) = (plan.clone(), ranks.clone());
        let summer = Summer { plan: plan_there, order, wire, ranks, keeps, max_len: MAX_LEN };
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

    /// Whether all parameters of the step have been offered.
    pub(crate) fn is_complete(&self) -> bool {
        self.n_sent == self.plan.buckets.len()
    }

    /// Waits for all sums: by bucket, the elements that this rank keeps. Gradients that were not offered, because the
    /// pass failed, count as absent.
    ///
    /// # Errors
    /// If communication fails; or if this rank cannot read its gradients, of which the others do not know.
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
        let sums = timed(WAITING, Phase::Other, || self.receive());
        self.reset();
        sums
    }

    fn receive(&self) -> Result<Vec<Vec<f32>>> {
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
    /// By partial sum, those of rank 0 first: how many additions follow when it has been put on top of the others. Each
    /// replaces the upper two by their sum.
    additions: Vec<usize>,
}

impl Order {
    fn new(n_micro_batches: u64, n_ranks: usize) -> Self {
        let len = n_micro_batches / n_ranks as u64;
        let of_rank = |rank| nodes_within(rank * len..(rank + 1) * len, n_micro_batches);
        let nodes: Vec<Vec<Range<u64>>> = (0..n_ranks as u64).map(of_rank).collect();
        let n_partials = nodes.iter().map(Vec::len).collect();
        let (mut additions, mut sum) = (Vec::new(), PairwiseSum::new(n_micro_batches));
        for leaves in nodes.into_iter().flatten() {
            let mut n = 0;
            let add = |(), ()| {
                n += 1;
                Ok(())
            };
            sum.push(Node { leaves, sum: () }, add).expect("invariant: nothing can fail");
            additions.push(n);
        }
        Self { n_partials, additions }
    }

    /// The sum of `partials`, of `len` elements each.
    fn sum(&self, partials: &[&[f32]], len: usize) -> Vec<f32> {
        /// Elements that stay in the cache from one addition to the next.
        const BLOCK: usize = 2048;
        let mut total = Vec::with_capacity(len);
        let mut stack: Vec<[f32; BLOCK]> = Vec::new();
        for start in (0..len).step_by(BLOCK) {
            let n = BLOCK.min(len - start);
            let mut depth = 0;
            for (partial, &n_additions) in partials.iter().zip(&self.additions) {
                if stack.len() == depth {
                    stack.push([0.; BLOCK]);
                }
                stack[depth][..n].copy_from_slice(&partial[start..start + n]);
                depth += 1;
                for _ in 0..n_additions {
                    depth -= 1;
                    let (below, above) = stack.split_at_mut(depth);
                    let (sum, terms) = (&mut below[depth - 1][..n], &above[0][..n]);
                    sum.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
                }
            }
            total.extend_from_slice(&stack[0][..n]);
        }
        total
    }
}

/// The thread that makes the calls.
struct Summer {
    plan: Arc<Plan>,
    order: Order,
    wire: Wire,
    ranks: Ranks,
    keeps: Keeps,
    /// [`MAX_LEN`], but for tests.
    max_len: usize,
}

impl Summer {
    fn run(&self, jobs: &Receiver<Job>, sums: &Sender<Result<Vec<f32>>>) {
        for Job { bucket, partials } in jobs {
            let sum = self.sum(&self.plan.buckets[bucket], &partials);
            let is_last = matches!(sum, Err(Error::Communication(_)));
            if sums.send(sum).is_err() || is_last {
                return;
            }
        }
    }

    /// The sums of a bucket over all ranks.
    fn sum(&self, bucket: &Bucket, partials: &[Partials]) -> Result<Vec<f32>> {
        let own = (0..self.order.n_partials[self.ranks.rank()])
            .map(|partial| flatten(bucket, partials.iter().map(|slot| slot[partial].as_ref())));
        match own.collect::<Result<Vec<_>>>() {
            Ok(own) => self.sum_with(&own, bucket),
            Err(error) => {
                // The others wait for this rank.
                let absent = vec![vec![-0.; bucket.len()]; partials.first().map_or(1, Vec::len)];
                self.sum_with(&absent, bucket)?;
                Err(error)
            }
        }
    }

    /// The sums of a bucket over all ranks, of which this one has the partial sums `own`.
    fn sum_with(&self, own: &[Vec<f32>], bucket: &Bucket) -> Result<Vec<f32>> {
        let mut parts = self.parts(bucket);
        if let ([part], Keeps::All) = (&mut parts[..], self.keeps) {
            // In the order of the ranks, the shards are the bucket.
            return self.sum_part(own, part);
        }
        let kept = match self.keeps {
            Keeps::All => 0..bucket.len(),
            Keeps::OwnShard => bucket.shard(self.ranks.rank()),
        };
        let mut sums = vec![0.; kept.len()];
        for part in parts {
            let mut rest = &self.sum_part(own, &part)?[..];
            for range in part.into_iter().filter(|range| kept.contains(&range.start)) {
                let (here, after) = rest.split_at(range.len());
                sums[range.start - kept.start..range.end - kept.start].copy_from_slice(here);
                rest = after;
            }
        }
        Ok(sums)
    }

    /// The parts in which a bucket travels, so that no call moves too much: for each, the elements of each rank's
    /// shard.
    fn parts(&self, bucket: &Bucket) -> Vec<Vec<Range<usize>>> {
        let largest = bucket.shards.iter().copied().max().unwrap_or(0);
        let len = (self.max_len / self.order.additions.len()).max(1);
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

    /// The sums of the elements in `part`: of all ranks' shards, or of this rank's alone if it keeps no others.
    fn sum_part(&self, own: &[Vec<f32>], part: &[Range<usize>]) -> Result<Vec<f32>> {
        let shard = self.sum_shard(own, part)?;
        if self.keeps == Keeps::OwnShard {
            return Ok(self.wire.rounded(shard));
        }
        let lens: Vec<_> = part.iter().map(ExactSizeIterator::len).collect();
        self.wire.gather(&self.ranks, &shard, &lens)
    }

    /// The sum over all ranks of this rank's shard, from its own partial sums and those that the others send.
    fn sum_shard(&self, own: &[Vec<f32>], part: &[Range<usize>]) -> Result<Vec<f32>> {
        let (rank, n_partials) = (self.ranks.rank(), &self.order.n_partials);
        let len = part[rank].len();
        // What stays here does not travel.
        let to_others =
            |range: &Range<usize>| if *range == part[rank] { 0..0 } else { range.clone() };
        let (packed, send_parts) = match own {
            [sum] => (Cow::Borrowed(&sum[..]), part.iter().map(to_others).collect()),
            sums => pack(sums, &part.iter().map(to_others).collect::<Vec<_>>()),
        };
        let receive_lens: Vec<_> = n_partials
            .iter()
            .enumerate()
            .map(|(of, n)| if of == rank { 0 } else { n * len })
            .collect();
        let received = self.wire.exchange(&self.ranks, &packed, &send_parts, &receive_lens)?;
        let kept: Vec<_> =
            own.iter().map(|sum| self.wire.rounded(sum[part[rank].clone()].to_vec())).collect();
        let (mut partials, mut rest): (Vec<&[f32]>, _) = (Vec::new(), &received[..]);
        for (of, &n) in n_partials.iter().enumerate() {
            if of == rank {
                partials.extend(kept.iter().map(Vec::as_slice));
                continue;
            }
            let (here, after) = rest.split_at(n * len);
            partials.extend((0..n).map(|i| &here[i * len..(i + 1) * len]));
            rest = after;
        }
        Ok(self.order.sum(&partials, len))
    }
}

/// For each range, those elements of all `sums`, one after the other; and where they are.
fn pack(sums: &[Vec<f32>], ranges: &[Range<usize>]) -> (Cow<'static, [f32]>, Vec<Range<usize>>) {
    let mut packed = Vec::new();
    let mut parts = Vec::new();
    for range in ranges {
        let start = packed.len();
        for sum in sums {
            packed.extend_from_slice(&sum[range.clone()]);
        }
        parts.push(start..packed.len());
    }
    (packed.into(), parts)
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
    let tensor = tensor.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cpu(CpuStorage::F32(values)) = &*storage else {
        unreachable!("invariant: it is on the CPU, in f32")
    };
    elements.extend_from_slice(&values[layout.start_offset()..][..tensor.elem_count()]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::threads;
    use crate::training::distributed::plan::Division;

    #[test]
    fn partial_sums_are_added_in_the_order_of_the_tree() {
        // 0 | 1 2 | 3 4 | 5: two ranks with three micro-batches each send 0+1, 2 and 3, 4+5.
        let order = Order::new(6, 2);
        assert_eq!(order.n_partials, [2, 2]);
        let len = 5000;
        let partials: Vec<Vec<f32>> = [1e8, 1., -1e8, 3.].map(|x: f32| vec![x; len]).into();
        let slices: Vec<&[f32]> = partials.iter().map(Vec::as_slice).collect();
        // (0+1 + (2 + 3)) + 4+5
        let expected = (1e8_f32 + (1. - 1e8)) + 3.;
        assert_eq!(order.sum(&slices, len), vec![expected; len]);
        assert_eq!(Order::new(8, 2).additions, [0, 1]);
    }

    #[test]
    fn a_bucket_in_many_parts_has_the_sums_of_one_part() {
        let sums = |max_len, keeps| {
            let threads: Vec<_> = threads::ranks(3)
                .into_iter()
                .map(|rank| {
                    std::thread::spawn(move || {
                        let ranks = Ranks::new(Arc::new(rank), "host").unwrap();
                        let plan = Plan::new(&[7, 4], 100, &Division::Equal(3));
                        let order = Order::new(9, 3);
                        let n = order.n_partials[ranks.rank()];
                        let own = |partial: usize| -> Vec<f32> {
                            (0..11).map(|i| (i * 7 + partial * 3 + ranks.rank()) as f32).collect()
                        };
                        let own: Vec<_> = (0..n).map(own).collect();
                        let bucket = plan.buckets[0].clone();
                        let plan = Arc::new(plan);
                        let summer = Summer { plan, order, wire: Wire::F32, ranks, keeps, max_len };
                        summer.sum_with(&own, &bucket).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        };
        let whole = sums(MAX_LEN, Keeps::All);
        assert!(whole.iter().all(|sum| sum.len() == 11 && *sum == whole[0]));
        assert_eq!(sums(5, Keeps::All), whole);
        let shards = sums(5, Keeps::OwnShard);
        assert_eq!(shards, sums(MAX_LEN, Keeps::OwnShard));
        assert_eq!(shards.concat(), whole[0]);
    }
}
