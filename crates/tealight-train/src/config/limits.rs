//! Refuses sizes that no machine can hold, by key, before anything is allocated: Rust aborts the process when an
//! allocation fails.

use serde_json::Value;
use tealight_model::cost::Estimate;
use tealight_model::{Activations, ConfigFault, ModelConfig};

use super::RunConfig;
use crate::checks::{MAX_SIZE, at_most};
use crate::error::{Error, Result};

/// The largest number of blocks: each has many small tensors, whatever its width.
const MAX_LAYERS: usize = 10_000;
/// The most scalars in the parameters, or in the activations of a batch: 4 TiB of f32.
const MAX_SCALARS: f64 = (1_u64 << 40) as f64;

/// The most keys that an error names.
const MAX_NAMED: usize = 3;

/// Checks each size in `[model]` and `[training]`, and the number of parameters that follows from them.
pub(crate) fn check(config: &RunConfig) -> Result<()> {
    check_model(&config.model)?;
    at_most("training.batch_size", config.training.batch_size as u64, MAX_SIZE)
}

/// Checks the sizes in `[model]` alone, also of a folder without `[training]`.
pub(crate) fn check_model(model: &ModelConfig) -> Result<()> {
    for (pointer, size) in sizes("", &serde_json::to_value(model).unwrap_or_default()) {
        at_most(&key(&pointer), size, MAX_SIZE)?;
    }
    at_most("model.n_layers", model.n_layers as u64, MAX_LAYERS as u64)?;
    let parameters = |model: &ModelConfig| Estimate::single_stack(model, 0).parameters;
    let n = parameters(model);
    if n <= MAX_SCALARS {
        return Ok(());
    }
    let result = format!("about {n:.0e} parameters; the limit is {MAX_SCALARS:.0e}");
    Err(blame_sizes(model, parameters, "make", &result))
}

/// Refuses a batch of sequences of length `positions` for which the system has too little memory: parameters,
/// gradients, moments, and activations kept for the backward pass.
pub(crate) fn check_memory(
    config: &RunConfig,
    estimate: &Estimate,
    positions: usize,
    n_ranks: usize,
) -> Result<()> {
    let batch_size = config.training.batch_size;
    let bytes = memory(config, estimate, 4., n_ranks);
    if activations(config, estimate) <= MAX_SCALARS && is_available(bytes) {
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

/// Bytes that one of `n_ranks` processes needs: parameters, gradients, moments, and the activations of a batch at
/// `bytes_per_activation`. (Half precision saves nothing in the first three: the gradients shrink by as much as the
/// half-precision copies of the parameters take.)
pub(crate) fn memory(
    config: &RunConfig,
    estimate: &Estimate,
    bytes_per_activation: f64,
    n_ranks: usize,
) -> f64 {
    let moments = if config.distributed.shard_optimizer { 8. / n_ranks as f64 } else { 8. };
    let gradients = 4. * n_gradient_sets(config.training.micro_batches, n_ranks as u64) as f64;
    (4. + moments + gradients) * estimate.parameters
        + bytes_per_activation * activations(config, estimate)
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

/// Scalars of activations that the backward pass of a batch needs.
fn activations(config: &RunConfig, estimate: &Estimate) -> f64 {
    let of_example = match config.training.activations() {
        Activations::Kept => estimate.activations,
        Activations::Recomputed => estimate.recomputed,
    };
    config.training.batch_size as f64 * of_example
}

/// Refuses a model whose parameters and optimizer state exceed memory; `parameters` counts the parameters.
pub(crate) fn check_parameters(
    model: &ModelConfig,
    parameters: impl Fn(&ModelConfig) -> f64,
) -> Result<()> {
    let bytes = 16. * parameters(model);
    if is_available(bytes) {
        return Ok(());
    }
    let result = format!(
        "about {:.0} GiB of memory for the parameters and what the optimizer keeps of them",
        bytes / f64::from(1 << 30)
    );
    Err(blame_sizes(model, parameters, "need", &result))
}

/// "`a` = 1 and `b` = 2 `verb` `result`", with the sizes in `[model]` that have the largest effect on the number of
/// parameters, largest first.
///
/// Sets each size to 1 in turn and counts the parameters that remain. Names the size that leaves the fewest, and
/// others that leave at most a tenth.
fn blame_sizes(
    model: &ModelConfig,
    parameters: impl Fn(&ModelConfig) -> f64,
    verb: &str,
    result: &str,
) -> Error {
    let table = serde_json::to_value(model).unwrap_or_default();
    let without = |pointer: &str| -> Option<f64> {
        let mut table = table.clone();
        *table.pointer_mut(pointer)? = 1.into();
        Some(parameters(&serde_json::from_value(table).ok()?))
    };
    let mut left: Vec<(f64, String, u64)> = sizes("", &table)
        .into_iter()
        .filter_map(|(pointer, size)| Some((without(&pointer)?, key(&pointer), size)))
        .collect();
    left.sort_by(|a, b| a.0.total_cmp(&b.0));
    left.truncate(MAX_NAMED);
    let whole = parameters(model);
    let n_blamed = left.iter().take_while(|(rest, ..)| 10. * rest <= whole).count().max(1);
    left.truncate(n_blamed);
    let named: Vec<_> = left.iter().map(|(_, key, size)| format!("`{key}` = {size}")).collect();
    let s = if named.len() == 1 { "s" } else { "" };
    let message = format!("{} {verb}{s} {result}", named.join(" and "));
    Error::Config(ConfigFault { keys: left.into_iter().map(|(_, key, _)| key).collect(), message })
}

/// Every integer in a table, with its JSON pointer, which starts with `pointer`.
fn sizes(pointer: &str, value: &Value) -> Vec<(String, u64)> {
    match value {
        Value::Object(table) => {
            let below = |(key, value): (&String, &Value)| sizes(&format!("{pointer}/{key}"), value);
            table.iter().flat_map(below).collect()
        }
        Value::Number(number) => {
            number.as_u64().map(|size| (pointer.to_owned(), size)).into_iter().collect()
        }
        _ => Vec::new(),
    }
}

/// The dotted key of a JSON pointer into `[model]`.
fn key(pointer: &str) -> String {
    format!("model{}", pointer.replace('/', "."))
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

    fn message(overrides: &[&str]) -> String {
        check(&config(overrides)).unwrap_err().to_string()
    }

    #[test]
    fn sizes_are_limited_wherever_they_stand_in_the_model() {
        assert!(check(&config(&[])).is_ok());
        let rule = "`model.d_model` = 1048577 must be at most 1048576";
        assert_eq!(message(&["model.d_model=1048577"]), rule);
        let relative = "model.position={kind='relative',n_buckets=9223372036854775807}";
        assert!(
            message(&[relative]).starts_with("`model.position.n_buckets` = 9223372036854775807")
        );
        assert!(message(&["model.n_layers=10001"]).contains("at most 10000"));
        assert!(message(&["training.batch_size=1048577"]).contains("`training.batch_size`"));
    }

    #[test]
    fn products_of_sizes_are_limited() {
        let message = message(&["model.d_model=1048576"]);
        let expected = "`model.d_model` = 1048576 makes about 3e13 parameters; the limit is 1e12";
        assert_eq!(message, expected);
    }

    #[test]
    fn the_setting_that_makes_a_model_large_is_blamed() {
        let blamed = |overrides: &[&str]| match check(&config(overrides)).unwrap_err() {
            Error::Config(fault) => fault.keys,
            other => panic!("{other}"),
        };
        let pairs = ["model.max_seq_len=1048576", "model.attention={kind='aft_full',rank=1048576}"];
        assert_eq!(blamed(&pairs), ["model.max_seq_len", "model.attention.rank"]);
        let wide = [
            "model.d_model=8",
            "model.n_layers=10000",
            "model.feed_forward={kind='mlp',d_ff=1048576}",
        ];
        assert_eq!(check(&config(&wide)).map_err(|error| error.to_string()), Ok(()));
        let both = ["model.d_model=65536", "model.n_layers=100"];
        assert_eq!(blamed(&both), ["model.d_model", "model.n_layers"]);
        let window = "model.attention={kind='aft_local',window=1048576}";
        let long = ["model.max_seq_len=1048576", window, "model.causal=true"];
        assert_eq!(blamed(&long), ["model.max_seq_len", "model.attention.window"]);
    }

    #[test]
    fn the_sums_of_micro_batches_count_as_memory() {
        // 0123 45 6 and micro-batch 7.
        let alone = [(1, 1), (2, 2), (3, 2), (4, 3), (8, 4), (12, 4)];
        assert!(alone.iter().all(|&(n, sets)| n_gradient_sets(n, 1) == sets));
        // Of six, rank 1 of two holds 3, 4 and micro-batch 5; then the sums over both ranks arrive.
        assert_eq!([(8, 2), (8, 8), (6, 2)].map(|(n, ranks)| n_gradient_sets(n, ranks)), [4, 2, 4]);
        let estimate = Estimate { parameters: 10., activations: 0., recomputed: 0. };
        let bytes = |changes: &[&str], n_ranks| memory(&config(changes), &estimate, 4., n_ranks);
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
        let message = check_memory(&large, &of(&large, 1000), 1000, 1).unwrap_err().to_string();
        assert!(
            message.starts_with("`training.batch_size` = 1048576 sequences of 1000"),
            "{message}"
        );
        let small = config(&[]);
        assert!(check_memory(&small, &of(&small, 10), 10, 1).is_ok());
        assert!(check_parameters(&small.model, |_| of(&small, 10).parameters).is_ok());
        assert!(!is_available(1e18));
    }
}
