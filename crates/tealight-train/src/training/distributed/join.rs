//! Checks before the first step that all ranks have the same program, settings, data and parameters.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tealight_ops::device::gpu_name;

use crate::communicator::nccl;
use crate::communicator::ranks::Ranks;
use crate::communicator::transport::{ThroughHost, TransportKind};
use crate::config::{ConfigSource, Difference, RunConfig, to_resolved_toml};
use crate::data::DataFile;
use crate::error::{Error, Result};
use crate::run::manifest::{Instructions, device_name};
use crate::storage::tensors::{MESSAGE, fingerprint};
use crate::task::Task;
use crate::training::session::Session;
use crate::training::shards::{Owners, Shards};

/// The program and the data of a rank, which have to be the same on all ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The program: its version and a digest of its file.
    pub program: String,
    /// The request of its command line, beside settings: such as `resume the run and stop after step 5`.
    pub arguments: String,
    /// The files of the data.
    pub data: Vec<DataFile>,
}

/// All that has to be the same.
#[derive(Debug, Serialize, Deserialize)]
struct Description {
    identity: Identity,
    /// The resolved configuration.
    settings: String,
    /// The kind of device, and its instruction set or its maker's name.
    computes_with: String,
    /// See [`fingerprint`].
    parameters: u128,
}

impl<T: Task> Session<T> {
    /// Lets the session train together with those of the other `ranks`.
    ///
    /// # Errors
    /// On all ranks, if one differs in its program, settings, instruction set, data or parameters, or if the number of
    /// ranks does not divide `training.micro_batches`.
    pub fn join(&mut self, ranks: Ranks, identity: &Identity) -> Result<()> {
        if ranks.is_alone() {
            return Ok(());
        }
        let own = self.describe(identity);
        let all = ranks.agree(own)?;
        let alike = (1..all.len()).try_for_each(|rank| compare(&ranks, rank, &all[rank], &all[0]));
        let divided = divides(ranks.size() as u64, self.config.training.micro_batches);
        alike.and(divided).map_err(|error| ranks.as_shared_failure(error))?;
        self.transport = match self.config.distributed.transport {
            TransportKind::Host => Arc::new(ThroughHost::new(ranks.clone())),
            TransportKind::Nccl => nccl::connect(&ranks, self.params.device())?,
        };
        if self.config.distributed.shard_optimizer {
            let owners = Owners::new(&self.params, &ranks);
            self.optimizer.keep_only(&owners.own_names());
            self.shards = Shards::Owned(owners);
        }
        self.ranks = ranks;
        Ok(())
    }

    fn describe(&self, identity: &Identity) -> Result<Description> {
        let (precision, device) = (self.config.training.precision, self.params.device());
        let instructions =
            Instructions::for_precision(precision, device).map(|set| set.to_string());
        let name = device_name(device);
        let kind = name.split(':').next().unwrap_or_default();
        let with = instructions.or_else(|| gpu_name(device)).map(|with| format!(" with {with}"));
        Ok(Description {
            identity: identity.clone(),
            settings: to_resolved_toml(&self.config)?,
            computes_with: format!("{kind}{}", with.unwrap_or_default()),
            parameters: fingerprint(&self.params.tensors())?,
        })
    }

    /// Checks that all ranks have the same parameters.
    ///
    /// # Errors
    /// On all ranks, if they differ, which is a defect of a machine or of this program.
    pub(crate) fn check_same_parameters(&self) -> Result<()> {
        if self.ranks.is_alone() {
            return Ok(());
        }
        let all = self.ranks.agree(fingerprint(&self.params.tensors()))?;
        let Some(rank) = all.iter().position(|one| *one != all[0]) else { return Ok(()) };
        let step = self.progress.step;
        let message = format!(
            "after step {step} rank {rank} on {} has other parameters than rank 0 on {}; its numbers cannot be trusted",
            self.ranks.host(rank),
            self.ranks.host(0)
        );
        Err(self.ranks.as_shared_failure(Error::UnlikeRanks(message)))
    }
}

/// Checks that a rank is like rank 0.
fn compare(ranks: &Ranks, rank: usize, own: &Description, first: &Description) -> Result<()> {
    let unlike = |what: String| {
        let (host, first_host) = (ranks.host(rank), ranks.host(0));
        Err(Error::UnlikeRanks(format!(
            "rank {rank} on {host} differs from rank 0 on {first_host}: {what}"
        )))
    };
    if own.identity.program != first.identity.program {
        let [own, first] = [own, first].map(|one| &one.identity.program);
        return unlike(format!("the program is {own}, not {first}"));
    }
    if own.identity.arguments != first.identity.arguments {
        let [own, first] = [own, first].map(|one| &one.identity.arguments);
        return unlike(format!("it was asked to {own}, not to {first}"));
    }
    if own.settings != first.settings {
        return unlike(differences(&own.settings, &first.settings)?);
    }
    if own.computes_with != first.computes_with {
        let [own, first] = [own, first].map(|one| &one.computes_with);
        return unlike(format!("it computes on {own}, not {first}"));
    }
    let files = |one: &Description| one.identity.data.iter().map(shown).collect::<BTreeSet<_>>();
    let (own_files, first_files) = (files(own), files(first));
    if let Some(file) = own_files.symmetric_difference(&first_files).next() {
        let has = if own_files.contains(file) { "only it has" } else { "it does not have" };
        return unlike(format!("{has} the data {file}"));
    }
    if own.parameters != first.parameters {
        return unlike("the parameters before the first step have other values".to_owned());
    }
    Ok(())
}

/// `` `training.steps` = 7, not 6 ``, one after the other.
fn differences(own: &str, first: &str) -> Result<String> {
    let config = |text: &str| -> Result<RunConfig> {
        Ok(ConfigSource::parse(MESSAGE.as_ref(), text, &[])?.deserialize()?)
    };
    let differences = config(first)?.differences(&config(own)?);
    let shown: Vec<_> = differences.iter().map(Difference::describe_difference).collect();
    Ok(shown.join("; "))
}

/// `` `task.corpus.paths`: books/a.txt (00f5…) ``
fn shown(DataFile { key, path, fingerprint }: &DataFile) -> String {
    format!("`{key}`: {} ({fingerprint})", path.display())
}

/// Checks that the micro-batches can be divided among the ranks.
fn divides(n_ranks: u64, n_micro_batches: u64) -> Result<()> {
    if n_micro_batches.is_multiple_of(n_ranks) {
        return Ok(());
    }
    let below = n_micro_batches / n_ranks * n_ranks;
    let nearest = match below {
        0 => format!("{n_ranks}"),
        _ => format!("{below} and {}", below + n_ranks),
    };
    let message = format!(
        "`training.micro_batches` = {n_micro_batches} counts the micro-batches of all processes, and {n_ranks} processes \
         cannot share {n_micro_batches} evenly; the nearest that can be shared: {nearest}"
    );
    Err(Error::config(["training.micro_batches"], message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_ranks_that_does_not_divide_is_refused_with_the_nearest_that_do() {
        divides(4, 8).unwrap();
        let message = |n_ranks, n| divides(n_ranks, n).unwrap_err().to_string();
        assert!(message(4, 6).ends_with(
            "4 processes cannot share 6 evenly; the nearest that can be shared: 4 and 8"
        ));
        assert!(
            message(4, 1).ends_with("cannot share 1 evenly; the nearest that can be shared: 4")
        );
    }
}
