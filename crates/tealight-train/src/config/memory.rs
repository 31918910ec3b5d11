//! The memory that training takes, estimated from the settings before anything is allocated.
//!
//! ```text
//! bytes = (weight + gradients + moments)·parameters + activation·activations
//! ```
//!
//! Rust aborts the process when an allocation fails, so a model or a batch that cannot be allocated is refused, by key.

use candle_core::DType;
use tealight_model::cost::Estimate;
use tealight_model::{Activations, ModelConfig};

use super::limits::{MAX_SCALARS, blame_sizes};
use super::{DistributedConfig, RunConfig, TrainingConfig};
use crate::error::{Error, Result};

/// Bytes that training takes for each scalar.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BytesPerScalar {
    /// For a scalar of the parameters: weight, gradients and moments.
    parameter: f64,
    /// For an activation that is kept for the backward pass.
    activation: f64,
}

impl BytesPerScalar {
    /// In one process, without `training.micro_batches`, all in f32: weight, gradient and two moments.
    pub const F32: Self = Self { parameter: 16., activation: 4. };

    /// In one of `n_ranks` processes of a run whose activations are of `dtype`. Half precision saves nothing for the
    /// parameters, because the gradients shrink by as much as the half-precision copies of the weights take.
    pub(crate) fn of_run(config: &RunConfig, dtype: DType, n_ranks: usize) -> Self {
        let TrainingConfig { micro_batches, .. } = config.training;
        let DistributedConfig { shard_optimizer, .. } = config.distributed;
        let moments = if shard_optimizer { 8. / n_ranks as f64 } else { 8. };
        let gradients = 4. * n_gradient_sets(micro_batches, n_ranks as u64) as f64;
        Self { parameter: 4. + moments + gradients, activation: dtype.size_in_bytes() as f64 }
    }

    /// Bytes for all scalars together.
    pub fn total(self, parameters: f64, activations: f64) -> f64 {
        self.parameter * parameters + self.activation * activations
    }
}

/// The most sets of gradients that a process holds at a time: of a micro-batch, and of the pairwise sums of those
/// before it. With several ranks also the sums over all of them.
fn n_gradient_sets(n_micro_batches: u64, n_ranks: u64) -> u64 {
    let own = n_micro_batches.div_ceil(n_ranks).max(1);
    let n_sums = u64::from(own.ilog2());
    match n_ranks {
        1 => n_sums + 1,
        // The part of a rank is one subtree only if its length is a power of two.
        _ if own.is_power_of_two() => n_sums + 2,
        _ => 2 * n_sums + 2,
    }
}

/// Activations that are kept for the backward pass of a batch.
pub(crate) fn activations(config: &RunConfig, estimate: &Estimate) -> f64 {
    config.training.batch_size as f64 * estimate.kept(config.training.activations())
}

/// Refuses a model whose parameters and optimizer state exceed memory; `parameters` counts the parameters.
pub(crate) fn check_parameters(
    model: &ModelConfig,
    parameters: impl Fn(&ModelConfig) -> f64,
) -> Result<()> {
    let bytes = BytesPerScalar::F32.total(parameters(model), 0.);
    if is_available(bytes) {
        return Ok(());
    }
    let result = format!(
        "about {:.0} GiB of memory for the parameters and what the optimizer keeps of them",
        bytes / f64::from(1 << 30)
    );
    Err(blame_sizes(model, parameters, "need", &result))
}

/// Refuses a batch of sequences of length `positions` for which the system has too little memory: parameters,
/// gradients, moments, and activations kept for the backward pass, in f32.
pub(crate) fn check_batch(
    config: &RunConfig,
    estimate: &Estimate,
    positions: usize,
    n_ranks: usize,
) -> Result<()> {
    let batch_size = config.training.batch_size;
    let activations = activations(config, estimate);
    let bytes = BytesPerScalar::of_run(config, DType::F32, n_ranks);
    let bytes = bytes.total(estimate.parameters, activations);
    if activations <= MAX_SCALARS && is_available(bytes) {
        return Ok(());
    }
    let other = match config.training.activations() {
        Activations::Kept => ", as does `training.activation_checkpointing`",
        Activations::Recomputed => "",
    };
    let message = format!(
        "`training.batch_size` = {batch_size} sequences of {positions} positions, at `model.d_model` \
         = {} and `model.n_layers` = {}, need about {:.0} GiB of memory; smaller batches need less{other}, and \
         `training.micro_batches` can make up for them",
        config.model.d_model,
        config.model.n_layers,
        bytes / f64::from(1 << 30)
    );
    Err(Error::config(["training.batch_size", "model.d_model"], message))
}

/// Whether an allocation of this size succeeds; it is freed untouched. With overcommitment or control groups the
/// system may promise more than it has.
fn is_available(bytes: f64) -> bool {
    bytes < isize::MAX as f64 && Vec::<u8>::new().try_reserve_exact(bytes as usize).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::tests::config;

    #[test]
    fn the_sums_of_micro_batches_count_as_memory() {
        // 0123 45 6 and micro-batch 7.
        let alone = [(1, 1), (2, 2), (3, 2), (4, 3), (8, 4), (12, 4)];
        assert!(alone.iter().all(|&(n, sets)| n_gradient_sets(n, 1) == sets));
        // Of six, rank 1 of two holds 3, 4 and micro-batch 5; then the sums over both ranks arrive.
        assert_eq!([(8, 2), (8, 8), (6, 2)].map(|(n, ranks)| n_gradient_sets(n, ranks)), [4, 2, 4]);
        let bytes = |changes: &[&str], n_ranks| {
            BytesPerScalar::of_run(&config(changes), DType::F32, n_ranks).total(10., 0.)
        };
        let [accumulated, sharded] =
            ["training.micro_batches=8", "distributed.shard_optimizer=true"];
        assert_eq!((bytes(&[], 1), bytes(&[accumulated], 1)), (160., 280.));
        assert_eq!(bytes(&[accumulated], 4), 4. * 10. * (1. + 2. + 3.));
        assert_eq!(bytes(&[accumulated, sharded], 4), 4. * 10. * (1. + 0.5 + 3.));
    }

    #[test]
    fn batches_that_nothing_can_hold_are_refused() {
        let large = config(&["training.batch_size=1048576", "model.d_model=4096"]);
        let of = |config: &RunConfig, positions| Estimate::single_stack(&config.model, positions);
        let message = check_batch(&large, &of(&large, 1000), 1000, 1).unwrap_err().to_string();
        assert!(
            message.starts_with("`training.batch_size` = 1048576 sequences of 1000"),
            "{message}"
        );
        let small = config(&[]);
        assert!(check_batch(&small, &of(&small, 10), 10, 1).is_ok());
        assert!(check_parameters(&small.model, |_| of(&small, 10).parameters).is_ok());
        assert!(!is_available(1e18));
    }
}
