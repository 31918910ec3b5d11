//! A step that several ranks make together.

use std::ops::Range;
use std::sync::Arc;
use std::thread::Scope;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use tealight_ops::Gradients;
use tealight_ops::gradients::sum_of;

use super::bucket_reducer::{BucketReducer, NeededSums, Partials};
use super::exchange::GradientExchange;
use super::plan::{Division, Plan};
use crate::communicator::ranks::Ranks;
use crate::error::{Error, Result};
use crate::task::Task;
use crate::task::metrics::{Measures, Name};
use crate::training::pairwise_sum::{Node, PairwiseSum};
use crate::training::pass::Pass;
use crate::training::session::Session;
use crate::training::shards::Shards;

/// This rank's part in the steps of a run.
#[derive(Debug)]
pub(crate) struct SharedStep {
    ranks: Ranks,
    plan: Arc<Plan>,
    /// Name and tensor of each parameter.
    parameters: Vec<(String, Tensor)>,
    needed: NeededSums,
    exchange: GradientExchange,
    own_micro_batches: Range<u64>,
    /// Whether a rank had been asked to stop by the end of the last step.
    is_stop_requested: bool,
}

/// The part of a shared step that a rank has computed.
#[derive(Debug)]
pub(crate) struct PartialStep {
    /// The gradients of all micro-batches but the last, summed over subtrees.
    sums: PairwiseSum<Gradients>,
    n_micro_batches: u64,
    /// By parameter.
    has_gradient: Vec<bool>,
    /// The numbers of each micro-batch.
    micro_batches: Vec<MicroBatch>,
}

/// The numbers of a micro-batch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct MicroBatch {
    /// Name, sum and count.
    measures: Vec<(Name, f64, f64)>,
    count: f64,
    n_tokens: Option<u64>,
}

/// The message about a step that a rank sends to the others.
#[derive(Debug, Serialize, Deserialize)]
struct PartialStepReport {
    micro_batches: Vec<MicroBatch>,
    /// By parameter.
    has_gradient: Vec<bool>,
    is_stop_requested: bool,
}

impl PartialStep {
    /// An empty part of a step of `n_micro_batches`, those of all ranks together.
    pub(crate) fn new(n_micro_batches: u64) -> Self {
        let sums = PairwiseSum::new(n_micro_batches);
        Self { sums, n_micro_batches, has_gradient: Vec::new(), micro_batches: Vec::new() }
    }

    /// Adds the pass over a micro-batch, which is not the last of this rank.
    pub(crate) fn add(&mut self, micro: u64, pass: Pass) -> Result<()> {
        let gradients = self.record(pass)?;
        let node = Node { leaves: micro..micro + 1, sum: gradients };
        self.sums.push(node, |left, right| Ok(left.plus(right)?))
    }

    /// The sums of one parameter's gradient over the subtrees of this rank, whose last micro-batch has this gradient.
    pub(crate) fn partials(
        &self,
        last: u64,
        index: usize,
        gradient: Option<&Tensor>,
    ) -> Result<Partials> {
        let mut sums = PairwiseSum::new(self.n_micro_batches);
        for Node { leaves, sum } in self.sums.nodes() {
            let node = Node { leaves: leaves.clone(), sum: sum.at(index).cloned() };
            sums.push(node, |left, right| Ok(sum_of(left, right)?))?;
        }
        let node = Node { leaves: last..last + 1, sum: gradient.cloned() };
        sums.push(node, |left, right| Ok(sum_of(left, right)?))?;
        Ok(sums.into_nodes().into_iter().map(|node| node.sum).collect())
    }

    /// The part with the pass over its last micro-batch, whose gradients have been offered.
    pub(crate) fn finish(mut self, last: Pass) -> Result<Self> {
        self.record(last)?;
        Ok(self)
    }

    /// Records the numbers of a micro-batch, and returns its gradients.
    fn record(&mut self, pass: Pass) -> Result<Gradients> {
        let Pass { gradients, measures, count, n_tokens } = pass;
        self.micro_batches.push(MicroBatch { measures: measures.values()?, count, n_tokens });
        self.has_gradient.resize(gradients.iter().count(), false);
        for (has, (_, gradient)) in self.has_gradient.iter_mut().zip(gradients.iter()) {
            *has |= gradient.is_some();
        }
        Ok(gradients)
    }
}

impl SharedStep {
    /// The part of `session`'s rank; `None` if it is alone. Gradients are sent by a thread of `scope`.
    pub(crate) fn start<'scope, T: Task>(
        session: &Session<T>,
        scope: &'scope Scope<'scope, '_>,
    ) -> Result<Option<Self>> {
        let Session { ranks, shards, config, params, .. } = session;
        if ranks.is_alone() {
            return Ok(None);
        }
        let parameters = params.leaves();
        let sizes: Vec<_> = parameters.iter().map(|(_, leaf)| leaf.elem_count()).collect();
        let settings = &config.distributed;
        let (division, needed) = match shards {
            Shards::Whole => (Division::Equal(ranks.size()), NeededSums::All),
            Shards::Owned(owners) => {
                (Division::Owned(owners.ranks(), ranks.size()), NeededSums::OwnShard)
            }
        };
        let plan = Arc::new(Plan::new(&sizes, settings.bucket_len(), &division));
        let n_micro_batches = config.training.micro_batches;
        let (transport, wire) = (session.transport.clone(), settings.compress);
        let reducer = BucketReducer::new(ranks, transport, n_micro_batches, wire, needed);
        let exchange = GradientExchange::start(plan.clone(), reducer, scope)?;
        let own_micro_batches = ranks.part_of(n_micro_batches);
        let (ranks, is_stop_requested) = (ranks.clone(), false);
        Ok(Some(Self {
            ranks,
            plan,
            parameters,
            needed,
            exchange,
            own_micro_batches,
            is_stop_requested,
        }))
    }

    /// The micro-batches of this rank.
    pub(crate) fn own_micro_batches(&self) -> Range<u64> {
        self.own_micro_batches.clone()
    }

    /// Whether a rank had been asked to stop by the end of the last step.
    pub(crate) fn is_stop_requested(&self) -> bool {
        self.is_stop_requested
    }

    /// Sends the sums of one parameter's gradient; each parameter once in a step.
    pub(crate) fn offer(&mut self, index: usize, partials: Partials) {
        self.exchange.offer(index, partials);
    }

    /// The mean of the step over all ranks, from this rank's part, whose gradients have been offered.
    ///
    /// With `distributed.shard_optimizer` there are only the gradients of the parameters that this rank updates.
    ///
    /// # Errors
    /// On all ranks, if the part of one of them failed; and if communication fails.
    pub(crate) fn sum(
        &mut self,
        part: Result<PartialStep>,
        is_stop_requested: bool,
    ) -> Result<Pass> {
        assert!(
            part.is_err() || self.exchange.is_complete(),
            "invariant: a pass offers the gradients of all parameters"
        );
        // A rank that failed takes part, too, so that no other waits for it.
        let (part, sums) = match self.exchange.finish() {
            Ok(sums) => (part, sums),
            Err(error @ Error::Communication(_)) => return Err(error),
            Err(error) => (part.and(Err(error)), Vec::new()),
        };
        let report = part.map(|part| {
            let PartialStep { micro_batches, has_gradient, .. } = part;
            PartialStepReport { micro_batches, has_gradient, is_stop_requested }
        });
        let all = self.ranks.agree(report)?;
        self.is_stop_requested = all.iter().any(|report| report.is_stop_requested);
        let mut gradients = self.gradients(sums, &all)?;
        let micro_batches: Vec<_> =
            all.into_iter().flat_map(|report| report.micro_batches).collect();
        let count = micro_batches.iter().map(|micro| micro.count).sum();
        if count > 0. {
            gradients.scale(1. / count)?;
        }
        let n_tokens = micro_batches.iter().map(|micro| micro.n_tokens).sum();
        let measures = micro_batches.into_iter().flat_map(|micro| micro.measures).collect();
        Ok(Pass { gradients, measures: Measures::of_values(measures)?, count, n_tokens })
    }

    /// The gradients that this rank needs; `None` for the others, and for those that are absent on all ranks.
    fn gradients(&self, sums: Vec<Tensor>, all: &[PartialStepReport]) -> Result<Gradients> {
        let mut tensors = vec![None; self.parameters.len()];
        for (bucket, sums) in self.plan.buckets.iter().zip(sums) {
            let needed = self.needed.range(bucket, self.ranks.rank());
            for (index, range) in bucket.ranges() {
                let is_needed = needed.start <= range.start && range.end <= needed.end;
                if is_needed && all.iter().any(|report| report.has_gradient[index]) {
                    let sum = sums.narrow(0, range.start - needed.start, range.len())?;
                    tensors[index] = Some(as_gradient(&sum, &self.parameters[index].1)?);
                }
            }
        }
        let names = self.parameters.iter().map(|(name, _)| name.clone());
        Ok(names.zip(tensors).collect())
    }
}

/// The part of a bucket that is the gradient of `leaf`. On a CPU it is a view; on a GPU it gets memory of its own, as
/// the libraries choose their kernels by the alignment of addresses.
fn as_gradient(sum: &Tensor, leaf: &Tensor) -> Result<Tensor> {
    let sum = match (sum.device().is_cpu(), leaf.device().is_cpu()) {
        (false, false) => sum.force_contiguous()?,
        _ => sum.to_device(leaf.device())?,
    };
    Ok(sum.reshape(leaf.shape())?)
}
