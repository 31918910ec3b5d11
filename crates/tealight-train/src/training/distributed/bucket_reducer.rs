//! Sums the gradients of a bucket over all ranks: each rank adds up its shard in a fixed order, and sends the sum to
//! those that need it.

use std::ops::Range;
use std::sync::Arc;

use candle_core::{Device, Tensor};

use super::plan::Bucket;
use crate::communicator::ranks::Ranks;
use crate::communicator::transport::{Transport, joined, row, sum};
use crate::communicator::wire::Wire;
use crate::error::Result;
use crate::training::pairwise_sum::{Node, PairwiseSum, nodes_within};

/// The most elements that a rank receives in one call; it sends less than twice as many. MPI counts bytes in 32 bits.
const MAX_LEN: usize = 1 << 28;

/// The partial sums of one parameter's gradient, from left to right in the tree. An absent gradient counts as −0, which
/// changes no sum.
pub(crate) type Partials = Vec<Option<Tensor>>;

/// The sums that a rank needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NeededSums {
    /// All of them.
    All,
    /// The sums of its own shard, as it alone updates these parameters.
    OwnShard,
}

impl NeededSums {
    /// The elements of a bucket that a rank needs.
    pub(super) fn range(self, bucket: &Bucket, rank: usize) -> Range<usize> {
        match self {
            Self::All => 0..bucket.len(),
            Self::OwnShard => bucket.shard(rank),
        }
    }
}

/// The order in which the partial sums of all ranks are added.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Order {
    /// By rank, how many partial sums it sends.
    n_partials: Vec<usize>,
    /// By partial sum, those of rank 0 first: how many additions follow; see
    /// [`sum_in_order`](tealight_ops::gradients::sum_in_order).
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
}

/// Sums buckets over all ranks.
#[derive(Debug)]
pub(crate) struct BucketReducer {
    rank: usize,
    order: Order,
    wire: Wire,
    transport: Arc<dyn Transport>,
    needed: NeededSums,
    /// [`MAX_LEN`], but for tests.
    max_len: usize,
}

impl BucketReducer {
    /// For steps of `n_micro_batches`, those of all ranks together.
    pub(super) fn new(
        ranks: &Ranks,
        transport: Arc<dyn Transport>,
        n_micro_batches: u64,
        wire: Wire,
        needed: NeededSums,
    ) -> Self {
        let order = Order::new(n_micro_batches, ranks.size());
        Self { rank: ranks.rank(), order, wire, transport, needed, max_len: MAX_LEN }
    }

    /// How many partial sums this rank has of each gradient.
    pub(super) fn n_partials(&self) -> usize {
        self.order.n_partials[self.rank]
    }

    /// The sums of a bucket over all ranks: the elements that this rank needs.
    pub(super) fn sum(&self, bucket: &Bucket, partials: &[Partials]) -> Result<Tensor> {
        let device = self.transport.device();
        let own = (0..self.n_partials()).map(|partial| {
            flatten(bucket, partials.iter().map(|slot| slot[partial].as_ref()), device)
        });
        match own.collect::<Result<Vec<_>>>() {
            Ok(own) => self.sum_with(&own, bucket),
            Err(error) => {
                // The others wait for this rank.
                let absent = Tensor::full(-0_f32, bucket.len(), device)?;
                self.sum_with(&vec![absent; self.n_partials()], bucket)?;
                Err(error)
            }
        }
    }

    /// The sums of a bucket over all ranks, of which this one has the partial sums `own`.
    fn sum_with(&self, own: &[Tensor], bucket: &Bucket) -> Result<Tensor> {
        let parts = self.parts(bucket);
        if let ([part], NeededSums::All) = (&parts[..], self.needed) {
            // In the order of the ranks, the shards are the bucket.
            return self.sum_part(own, part);
        }
        let needed = self.needed.range(bucket, self.rank);
        let mut pieces = Vec::new();
        for part in parts {
            let (sums, mut start) = (self.sum_part(own, &part)?, 0);
            let is_needed =
                |range: &Range<usize>| !range.is_empty() && needed.contains(&range.start);
            for range in part.into_iter().filter(is_needed) {
                pieces.push((range.start, sums.narrow(0, start, range.len())?));
                start += range.len();
            }
        }
        pieces.sort_by_key(|(start, _)| *start);
        let pieces: Vec<_> = pieces.into_iter().map(|(_, piece)| piece).collect();
        joined(&pieces)
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
            (0..bucket.shards.len()).map(of_rank).collect()
        };
        (0..largest).step_by(len).map(part).collect()
    }

    /// The sums of the elements in `part`: of all ranks' shards, or of this rank's alone if it needs no others.
    fn sum_part(&self, own: &[Tensor], part: &[Range<usize>]) -> Result<Tensor> {
        let (terms, additions) = (self.terms(own, part)?, &self.order.additions);
        let terms: Vec<_> = terms.iter().collect();
        if self.needed == NeededSums::OwnShard {
            return self.wire.rounded(&sum(&terms, additions)?);
        }
        let lens: Vec<_> = part.iter().map(ExactSizeIterator::len).collect();
        self.transport.gather_sums(self.wire, &terms, additions, &lens)
    }

    /// All ranks' partial sums of this rank's shard, its own and those that the others send; none if the shard is
    /// empty.
    fn terms(&self, own: &[Tensor], part: &[Range<usize>]) -> Result<Vec<Tensor>> {
        let (rank, n_partials) = (self.rank, &self.order.n_partials);
        let len = part[rank].len();
        // What stays here does not travel.
        let to_others =
            |range: &Range<usize>| if *range == part[rank] { 0..0 } else { range.clone() };
        let to_others: Vec<_> = part.iter().map(to_others).collect();
        let (packed, send_parts) = match own {
            [sum] => (sum.clone(), to_others),
            sums => pack(sums, &to_others)?,
        };
        let from = |(of, n): (usize, &usize)| if of == rank { 0 } else { n * len };
        let receive_lens: Vec<_> = n_partials.iter().enumerate().map(from).collect();
        let received = self.transport.exchange(self.wire, &packed, &send_parts, &receive_lens)?;
        let (mut partials, mut start) = (Vec::new(), 0);
        if len == 0 {
            return Ok(partials);
        }
        for (of, &n) in n_partials.iter().enumerate() {
            if of == rank {
                let kept = own
                    .iter()
                    .map(|sum| self.wire.rounded(&sum.narrow(0, part[rank].start, len)?));
                partials.extend(kept.collect::<Result<Vec<_>>>()?);
                continue;
            }
            for _ in 0..n {
                partials.push(received.narrow(0, start, len)?);
                start += len;
            }
        }
        Ok(partials)
    }
}

/// For each range, those elements of all `sums`, one after the other; and where they are.
fn pack(sums: &[Tensor], ranges: &[Range<usize>]) -> Result<(Tensor, Vec<Range<usize>>)> {
    let (mut packed, mut parts, mut end) = (Vec::new(), Vec::new(), 0);
    for range in ranges {
        let start = end;
        for sum in sums.iter().filter(|_| !range.is_empty()) {
            packed.push(sum.narrow(0, range.start, range.len())?);
            end += range.len();
        }
        parts.push(start..end);
    }
    Ok((joined(&packed)?, parts))
}

/// The elements of a bucket in f32, one after the other.
fn flatten<'a>(
    bucket: &Bucket,
    tensors: impl Iterator<Item = Option<&'a Tensor>>,
    device: &Device,
) -> Result<Tensor> {
    let of_one = |(&size, tensor): (&usize, Option<&Tensor>)| match tensor {
        Some(tensor) => row(tensor, device),
        None => Ok(Tensor::full(-0_f32, size, device)?),
    };
    joined(&bucket.sizes.iter().zip(tensors).map(of_one).collect::<Result<Vec<_>>>()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::threads::tests::on_all;
    use crate::communicator::transport::ThroughHost;
    use crate::training::distributed::plan::{Division, Plan};

    #[test]
    fn partial_sums_are_added_in_the_order_of_the_tree() {
        // 0 | 1 2 | 3 4 | 5: two ranks with three micro-batches each send 0+1, 2 and 3, 4+5.
        let order = Order::new(6, 2);
        // (0+1 + (2 + 3)) + 4+5
        assert_eq!((order.n_partials, order.additions), (vec![2, 2], vec![0, 0, 2, 1]));
        assert_eq!(Order::new(8, 2).additions, [0, 1]);
    }

    /// How a bucket travels in a test.
    #[derive(Clone, Copy)]
    struct Way {
        max_len: usize,
        needed: NeededSums,
        wire: Wire,
        transport: fn(Ranks) -> Arc<dyn Transport>,
    }

    const WHOLE: Way = Way {
        max_len: MAX_LEN,
        needed: NeededSums::All,
        wire: Wire::F32,
        transport: |ranks| Arc::new(ThroughHost::new(ranks)),
    };

    /// A transport that gathers by an exchange, as that between GPUs does.
    #[derive(Debug)]
    struct ByExchange(ThroughHost);

    impl Transport for ByExchange {
        fn device(&self) -> &Device {
            self.0.device()
        }

        fn exchange(
            &self,
            wire: Wire,
            send: &Tensor,
            send_parts: &[Range<usize>],
            receive_lens: &[usize],
        ) -> Result<Tensor> {
            self.0.exchange(wire, send, send_parts, receive_lens)
        }
    }

    /// The sums of a bucket on each of three ranks, which have `n_micro_batches` together.
    fn sums(n_micro_batches: u64, division: &Division, way: Way) -> Vec<Vec<f32>> {
        on_all(3, |rank| {
            let ranks = Ranks::new(Arc::new(rank), "host").unwrap();
            let plan = Plan::new(&[7, 4, 5], 100, division);
            let transport = (way.transport)(ranks.clone());
            let reducer =
                BucketReducer::new(&ranks, transport, n_micro_batches, way.wire, way.needed);
            let reducer = BucketReducer { max_len: way.max_len, ..reducer };
            let own = |partial: usize| {
                let of = |i: usize| ((i * 7 + partial * 3 + ranks.rank()) as f32).exp();
                Tensor::from_vec((0..16).map(of).collect(), 16, &Device::Cpu).unwrap()
            };
            let own: Vec<_> = (0..reducer.n_partials()).map(own).collect();
            reducer.sum_with(&own, &plan.buckets[0]).unwrap().to_vec1::<f32>().unwrap()
        })
    }

    #[test]
    fn a_bucket_in_many_parts_has_the_sums_of_one_part() {
        let equal = Division::Equal(3);
        let whole = sums(9, &equal, WHOLE);
        assert!(whole.iter().all(|sum| sum.len() == 16 && *sum == whole[0]));
        assert_eq!(sums(9, &equal, Way { max_len: 5, ..WHOLE }), whole);
        let shards = sums(9, &equal, Way { needed: NeededSums::OwnShard, ..WHOLE });
        assert_eq!(
            sums(9, &equal, Way { max_len: 5, needed: NeededSums::OwnShard, ..WHOLE }),
            shards
        );
        assert_eq!(shards.concat(), whole[0]);
    }

    #[test]
    fn a_transport_that_only_exchanges_makes_the_same_sums() {
        // One rank owns nothing.
        for division in [Division::Equal(3), Division::Owned(vec![0, 2, 0], 3)] {
            for n_micro_batches in [3, 9] {
                for needed in [NeededSums::All, NeededSums::OwnShard] {
                    for wire in [Wire::F32, Wire::Bf16] {
                        let host = Way { needed, wire, ..WHOLE };
                        let expected = sums(n_micro_batches, &division, host);
                        for max_len in [MAX_LEN, 7] {
                            let transport = |ranks| -> Arc<dyn Transport> {
                                Arc::new(ByExchange(ThroughHost::new(ranks)))
                            };
                            let way = Way { max_len, transport, ..host };
                            assert_eq!(sums(n_micro_batches, &division, way), expected);
                        }
                    }
                }
            }
        }
    }
}
