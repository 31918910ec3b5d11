//! A step that several ranks make together.

use std::ops::Range;
use std::sync::Arc;
use std::thread::Scope;

use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use tealight_ops::Gradients;

use super::exchange::{GradientExchange, Keeps, Partials};
use super::plan::{Division, Plan};
use super::tree::Node;
use crate::communicator::ranks::Ranks;
use crate::error::Result;
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
    /// The gradients, summed over the subtrees of the rank's micro-batches.
    pub(crate) sums: Vec<Node<Gradients>>,
    /// What is reported of each micro-batch.
    pub(crate) micro_batches: Vec<MicroBatch>,
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

impl MicroBatch {
    /// Reads the measures of a pass, and takes its gradients out.
    pub(crate) fn of(pass: Pass) -> Result<(Gradients, Self)> {
        let Pass { gradients, measures, count, n_tokens } = pass;
        Ok((gradients, Self { measures: measures.values()?, count, n_tokens }))
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

    /// The mean of the step over all ranks, from this rank's part.
    ///
    /// With `distributed.shard_optimizer` there are only the gradients of the parameters that this rank updates.
    ///
    /// # Errors
    /// On all ranks, if the part of one of them failed; and if communication fails.
    pub(crate) fn sum(&mut self, part: Result<OwnPart>, is_stop_requested: bool) -> Result<Pass> {
        let mut has_gradient = vec![false; self.parameters.len()];
        if let Ok(part) = &part {
            for (index, has_gradient) in has_gradient.iter_mut().enumerate() {
                let partials = partials(&part.sums, index);
                *has_gradient = partials.iter().any(Option::is_some);
                self.exchange.offer(index, partials);
            }
        }
        // A rank that failed takes part, too, so that no other waits for it.
        let sums = self.exchange.finish()?;
        let told = part.map(|OwnPart { micro_batches, .. }| Told {
            micro_batches,
            has_gradient,
            is_stop_requested,
        });
        let all = self.ranks.agree(told)?;
        self.is_stop_requested = all.iter().any(|told| told.is_stop_requested);
        let mut gradients = self.gradients(&sums, &all)?;
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
    fn gradients(&self, sums: &[Vec<f32>], all: &[Told]) -> Result<Gradients> {
        let mut tensors = vec![None; self.parameters.len()];
        for (bucket, sums) in self.plan.buckets.iter().zip(sums) {
            let kept = match self.keeps {
                Keeps::All => 0..bucket.len(),
                Keeps::OwnShard => bucket.shard(self.ranks.rank()),
            };
            for (index, range) in bucket.ranges() {
                let is_kept = kept.start <= range.start && range.end <= kept.end;
                if is_kept && all.iter().any(|told| told.has_gradient[index]) {
                    let (_, leaf) = &self.parameters[index];
                    let elements = &sums[range.start - kept.start..range.end - kept.start];
                    let tensor = Tensor::from_slice(elements, leaf.shape(), leaf.device())?;
                    tensors[index] = Some(tensor);
                }
            }
        }
        let names = self.parameters.iter().map(|(name, _)| name.clone());
        Ok(names.zip(tensors).collect())
    }
}

/// The partial sums of one parameter's gradient.
fn partials(sums: &[Node<Gradients>], index: usize) -> Partials {
    let gradient = |node: &Node<Gradients>| node.sum.iter().nth(index)?.1.cloned();
    sums.iter().map(gradient).collect()
}
