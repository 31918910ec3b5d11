//! Sizes that no machine can hold, refused by name before anything is allocated.
//!
//! A number with a few zeros too many would otherwise end the process, because Rust aborts where
//! memory is refused.

use serde_json::Value;
use tealight_model::ModelConfig;
use tealight_model::cost::Estimate;

use crate::config::RunConfig;
use crate::error::{Error, Result};

/// The largest integer in `[model]`, and the largest batch.
const MAX_SIZE: u64 = 1 << 20;
/// The largest number of blocks: each is many small tensors, whatever their width.
const MAX_LAYERS: usize = 10_000;
/// The most scalars in the parameters, or in what a batch makes of them: 4 TiB of f32.
const MAX_SCALARS: f64 = (1_u64 << 40) as f64;

/// Checks the sizes one by one, and the parameters that follow from them.
pub(crate) fn check(config: &RunConfig) -> Result<()> {
    let model = serde_json::to_value(&config.model).unwrap_or_default();
    check_sizes("model", &model)?;
    at_most("model.n_layers", config.model.n_layers as u64, MAX_LAYERS as u64)?;
    at_most("training.batch_size", config.training.batch_size as u64, MAX_SIZE)?;
    let parameters = Estimate::alone(&config.model, 0).parameters;
    if parameters > MAX_SCALARS {
        let message = format!(
            "`model.d_model` = {} and `model.n_layers` = {} make about {parameters:.0e} parameters; \
             the limit is {MAX_SCALARS:.0e}",
            config.model.d_model, config.model.n_layers
        );
        return Err(Error::config(["model.d_model", "model.n_layers"], message));
    }
    Ok(())
}

/// Refuses what needs more memory than the system would give: the parameters, their gradients and
/// moments, and what the backward pass needs of a batch of sequences of `positions`.
pub(crate) fn check_memory(
    config: &RunConfig,
    estimate: &Estimate,
    positions: usize,
) -> Result<()> {
    let batch_size = config.training.batch_size;
    let activations = batch_size as f64 * estimate.activations;
    let bytes = 16. * estimate.parameters + 4. * activations;
    if activations <= MAX_SCALARS && is_available(bytes) {
        return Ok(());
    }
    let message = format!(
        "`training.batch_size` = {batch_size} sequences of {positions} positions, at `model.d_model` \
         = {} and `model.n_layers` = {}, need about {:.0} GiB of memory; smaller batches need less, and \
         `training.micro_batches` can make up for them",
        config.model.d_model,
        config.model.n_layers,
        bytes / f64::from(1 << 30)
    );
    Err(Error::config(["training.batch_size", "model.d_model"], message))
}

/// Refuses parameters that the system has no memory for.
pub(crate) fn check_parameters(config: &ModelConfig, estimate: &Estimate) -> Result<()> {
    let bytes = 16. * estimate.parameters;
    if is_available(bytes) {
        return Ok(());
    }
    let message = format!(
        "`model.d_model` = {} and `model.n_layers` = {} need about {:.0} GiB of memory for the \
         parameters and what the optimizer keeps of them",
        config.d_model,
        config.n_layers,
        bytes / f64::from(1 << 30)
    );
    Err(Error::config(["model.d_model", "model.n_layers"], message))
}

pub(crate) fn positive(key: &str, value: usize) -> Result<()> {
    if value > 0 {
        return Ok(());
    }
    Err(Error::config([key], format!("`{key}` = 0 must be positive")))
}

pub(crate) fn at_most(key: &str, value: u64, limit: u64) -> Result<()> {
    if value <= limit {
        return Ok(());
    }
    Err(Error::config([key], format!("`{key}` = {value} must be at most {limit}")))
}

/// Every integer below `path`.
fn check_sizes(path: &str, value: &Value) -> Result<()> {
    match value {
        Value::Object(table) => {
            table.iter().try_for_each(|(key, value)| check_sizes(&format!("{path}.{key}"), value))
        }
        Value::Number(number) => number.as_u64().map_or(Ok(()), |n| at_most(path, n, MAX_SIZE)),
        _ => Ok(()),
    }
}

/// Whether the system would give so much: it is asked, and nothing is touched. Where it promises more
/// than it has (overcommitment, control groups), the answer can be too kind.
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
        assert!(message.contains("about 3e13 parameters; the limit is 1e12"), "{message}");
    }

    #[test]
    fn batches_that_nothing_can_hold_are_refused() {
        let large = config(&["training.batch_size=1048576", "model.d_model=4096"]);
        let of = |config: &RunConfig, positions| Estimate::alone(&config.model, positions);
        let message = check_memory(&large, &of(&large, 1000), 1000).unwrap_err().to_string();
        assert!(
            message.starts_with("`training.batch_size` = 1048576 sequences of 1000"),
            "{message}"
        );
        let small = config(&[]);
        assert!(check_memory(&small, &of(&small, 10), 10).is_ok());
        assert!(check_parameters(&small.model, &of(&small, 10)).is_ok());
        assert!(!is_available(1e18));
    }
}
