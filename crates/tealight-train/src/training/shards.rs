//! `distributed.shard_optimizer`: each rank updates a part of the parameters (ZeRO stage 1, Rajbhandari et al. 2020,
//! <https://arxiv.org/abs/1910.02054>).
//!
//! ```text
//! state of the optimizer     a rank has that of its own parameters
//! gradients                  a rank receives the sums of its own
//! update                     of its own; then all ranks gather the parameters
//! ```
//!
//! A shard is whole tensors, because the update rules read whole tensors. Results have the same bits as without shards.

use candle_core::Device;
use tealight_model::ParamStore;
use tealight_ops::Gradients;

use crate::communicator::ranks::Ranks;
use crate::communicator::transport::{Transport, joined, row};
use crate::communicator::wire::Wire;
use crate::error::Result;
use crate::optimizer::Optimizer;
use crate::storage::tensors::{self, MESSAGE, NamedTensors};

/// Which parameters this rank updates.
#[derive(Debug)]
pub(crate) enum Shards {
    /// All: every rank makes every update.
    Whole,
    /// Those that it owns.
    Owned(Owners),
}

/// The owner of each trained parameter.
#[derive(Debug)]
pub(crate) struct Owners {
    ranks: Ranks,
    device: Device,
    /// In the order of the parameters: name and owner.
    parameters: Vec<(String, usize)>,
}

impl Owners {
    /// Divides the trained parameters among the ranks: the largest first, each to the rank that owns least so far.
    pub(crate) fn new(params: &ParamStore, ranks: &Ranks) -> Self {
        let (names, sizes): (Vec<_>, Vec<_>) =
            params.trained().map(|(name, variable)| (name, variable.elem_count())).unzip();
        let owners = balanced(&sizes, ranks.size());
        let parameters = names.into_iter().zip(owners).collect();
        Self { ranks: ranks.clone(), device: params.device().clone(), parameters }
    }

    /// By parameter, the rank that owns it.
    pub(crate) fn ranks(&self) -> Vec<usize> {
        self.parameters.iter().map(|(_, owner)| *owner).collect()
    }

    /// The names of the parameters that this rank owns.
    pub(crate) fn own_names(&self) -> Vec<String> {
        let own = self.parameters.iter().filter(|(_, owner)| *owner == self.ranks.rank());
        own.map(|(name, _)| name.clone()).collect()
    }

    fn merged(&self, messages: &[Vec<u8>]) -> Result<NamedTensors> {
        let mut all = NamedTensors::new();
        for message in messages {
            all.extend(tensors::from_bytes(MESSAGE.as_ref(), message, &self.device)?);
        }
        Ok(all)
    }
}

impl Shards {
    /// The norm of all gradients, of which this rank may have only its own.
    pub(crate) fn norm(&self, gradients: &Gradients) -> Result<f64> {
        let Self::Owned(Owners { ranks, parameters, .. }) = self else {
            return Ok(gradients.norm()?);
        };
        // Added in the order of the parameters, as on a single rank.
        let squares = ranks.gather(&gradients.sums_of_squares()?)?;
        let squares =
            parameters.iter().enumerate().filter_map(|(i, (_, owner))| squares[*owner][i]);
        Ok(squares.sum::<f64>().sqrt())
    }

    /// The gradients of all parameters, of which this rank may have only its own.
    pub(crate) fn complete(&self, gradients: &Gradients) -> Result<Gradients> {
        let Self::Owned(owners) = self else { return Ok(gradients.clone()) };
        let own = gradients.iter().filter_map(|(name, g)| Some((name.to_owned(), g?.clone())));
        let all = owners.merged(&owners.ranks.gather_bytes(&to_bytes(&own.collect())?)?)?;
        let names = gradients.iter().map(|(name, _)| name.to_owned());
        Ok(names.map(|name| (name.clone(), all.get(&name).cloned())).collect())
    }

    /// Sends the parameters that this rank has updated to all others, and receives theirs.
    pub(crate) fn gather_parameters(
        &self,
        params: &ParamStore,
        transport: &dyn Transport,
    ) -> Result<()> {
        let Self::Owned(owners) = self else { return Ok(()) };
        let (own, mut lens) = (owners.ranks.rank(), vec![0; owners.ranks.size()]);
        let mut rows = Vec::new();
        // By parameter, its owner and its place among the parameters of the owner.
        let mut places = Vec::new();
        for ((_, variable), owner) in params.trained().zip(owners.ranks()) {
            if owner == own {
                rows.push(row(&variable.as_detached_tensor(), transport.device())?);
            }
            places.push((owner, lens[owner]));
            lens[owner] += variable.elem_count();
        }
        let all = transport.gather(Wire::F32, &joined(&rows)?, &lens)?;
        for ((_, variable), (owner, place)) in params.trained().zip(places) {
            if owner != own {
                let start = lens[..owner].iter().sum::<usize>() + place;
                let values = all.narrow(0, start, variable.elem_count())?;
                variable.set(&values.reshape(variable.shape())?.to_device(variable.device())?)?;
            }
        }
        Ok(())
    }

    /// The state of the optimizer of all ranks on rank 0; that of this rank on the others.
    pub(crate) fn optimizer_state(&self, optimizer: &Optimizer) -> Result<NamedTensors> {
        let own = optimizer.state();
        let Self::Owned(owners) = self else { return Ok(own) };
        let gathered = owners.ranks.gather_on_first(&to_bytes(&own)?)?;
        if owners.ranks.is_first() { owners.merged(&gathered) } else { Ok(own) }
    }
}

fn to_bytes(tensors: &NamedTensors) -> Result<Vec<u8>> {
    tensors::to_bytes(MESSAGE.as_ref(), tensors)
}

/// The owner of each parameter of these sizes.
fn balanced(sizes: &[usize], n_ranks: usize) -> Vec<usize> {
    let mut by_size: Vec<usize> = (0..sizes.len()).collect();
    by_size.sort_by_key(|&index| std::cmp::Reverse(sizes[index]));
    let (mut owned, mut owners) = (vec![0; n_ranks], vec![0; sizes.len()]);
    for index in by_size {
        let least = (0..n_ranks).min_by_key(|&rank| owned[rank]).unwrap_or(0);
        owners[index] = least;
        owned[least] += sizes[index];
    }
    owners
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_own_about_the_same() {
        assert_eq!(balanced(&[50, 10, 30, 20, 40], 2), [0, 0, 1, 0, 1]);
        assert_eq!(balanced(&[1, 1], 3), [0, 1]);
    }
}
