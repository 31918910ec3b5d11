//! A step that several ranks make together.

use std::ops::Range;
use std::sync::Arc;
use std::thread::Scope;

use candle_core::{Device, Tensor};
use serde::{Deserialize, Serialize};
use tealight_ops::Gradients;
use tealight_ops::gradients::sum_of;

use super::exchange::{GradientExchange, Keeps, Partials};
use super::plan::{Division, Plan};
use super::tree::{Node, PairwiseSum};
use crate::communicator::ranks::Ranks;
use crate::error::{Error, Result};
use crate::task::Task;
use crate::task::metrics::{Measures, Name};
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
    keeps: Keeps,
    exchange: GradientExchange,
    n_micro_batches: u64,
    /// Whether a rank had been asked to stop by the end of the last step.
    is_stop_requested: bool,
}

/// What a rank has computed of a step.
#[derive(Debug)]
pub(crate) struct OwnPart {
    /// The gradients of all micro-batches but the last, summed over subtrees.
    sums: PairwiseSum<Gradients>,
    n_micro_batches: u64,
    /// By parameter.
    has_gradient: Vec<bool>,
    /// What is reported of each micro-batch.
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

/// What a rank tells the others about a step.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    micro_batches: Vec<MicroBatch>,
    /// By parameter.
    has_gradient: Vec<bool>,
    is_stop_requested: bool,
}

impl OwnPart {
    /// Of a step of `n_micro_batches`, those of all ranks together.
    pub(crate) fn new(n_micro_batches: u64) -> Self {
        let sums = PairwiseSum::new(n_micro_batches);
        Self { sums, n_micro_batches, has_gradient: Vec::new(), micro_batches: Vec::new() }
    }

    /// Adds the pass over a micro-batch, which is not the last of this rank.
    pub(crate) fn add(&mut self, micro: u64, pass: Pass) -> Result<()> {
        let gradients = self.note(pass)?;
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
        self.note(last)?;
        Ok(self)
    }

    /// Takes what is reported of a micro-batch; its gradients.
    fn note(&mut self, pass: Pass) -> Result<Gradients> {
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
        let (division, keeps) = match shards {
            Shards::Whole => (Division::Equal(ranks.size()), Keeps::All),
            Shards::Owned(owners) => {
                (Division::Owned(owners.ranks(), ranks.size()), Keeps::OwnShard)
            }
        };
        let plan = Arc::new(Plan::new(&sizes, settings.bucket_len(), &division));
        let n_micro_batches = config.training.micro_batches;
        let wire = settings.compress;
        let exchange =
            GradientExchange::start(plan.clone(), n_micro_batches, wire, ranks, keeps, scope)?;
        let ranks = ranks.clone();
        let is_stop_requested = false;
        Ok(Some(Self {
            ranks,
            plan,
            parameters,
            keeps,
            exchange,
            n_micro_batches,
            is_stop_requested,
        }))
    }

    /// The micro-batches of this rank.
    pub(crate) fn own_micro_batches(&self) -> Range<u64> {
        let len = self.n_micro_batches / self.ranks.size() as u64;
        let rank = self.ranks.rank() as u64;
        rank * len..(rank + 1) * len
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
    pub(crate) fn sum(&mut self, part: Result<OwnPart>, is_stop_requested: bool) -> Result<Pass> {
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
        let told = part.map(|part| {
            let OwnPart { micro_batches, has_gradient, .. } = part;
            Told { micro_batches, has_gradient, is_stop_requested }
        });
        let all = self.ranks.agree(told)?;
        self.is_stop_requested = all.iter().any(|told| told.is_stop_requested);
        let mut gradients = self.gradients(sums, &all)?;
        let micro_batches: Vec<_> = all.into_iter().flat_map(|told| told.micro_batches).collect();
        let count = micro_batches.iter().map(|micro| micro.count).sum();
        if count > 0. {
            gradients.scale(1. / count)?;
        }
        let n_tokens = micro_batches.iter().map(|micro| micro.n_tokens).sum();
        let measures = micro_batches.into_iter().flat_map(|micro| micro.measures).collect();
        Ok(Pass { gradients, measures: Measures::of_values(measures)?, count, n_tokens })
    }

    /// The gradients that this rank keeps; `None` for the others, and for those that are absent on all ranks.
    fn gradients(&self, sums: Vec<Vec<f32>>, all: &[Told]) -> Result<Gradients> {
        let mut tensors = vec![None; self.parameters.len()];
        for (bucket, sums) in self.plan.buckets.iter().zip(sums) {
            let kept = match self.keeps {
                Keeps::All => 0..bucket.len(),
                Keeps::OwnShard => bucket.shard(self.ranks.rank()),
            };
            // The gradients are views of the bucket.
            let sums = Tensor::from_vec(sums, kept.len(), &Device::Cpu)?;
            for (index, range) in bucket.ranges() {
                let is_kept = kept.start <= range.start && range.end <= kept.end;
                if is_kept && all.iter().any(|told| told.has_gradient[index]) {
                    let (_, leaf) = &self.parameters[index];
                    let tensor = sums.narrow(0, range.start - kept.start, range.len())?;
                    tensors[index] = Some(tensor.reshape(leaf.shape())?.to_device(leaf.device())?);
                }
            }
        }
        let names = self.parameters.iter().map(|(name, _)| name.clone());
        Ok(names.zip(tensors).collect())
    }
}
