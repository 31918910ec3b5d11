//! Refuses sizes that no machine can hold, by key, before anything is allocated.

use serde_json::Value;
use tealight_model::config::MAX_LAYERS;
use tealight_model::cost::Estimate;
use tealight_model::{ConfigFault, ModelConfig};

use super::RunConfig;
use crate::checks::{MAX_SIZE, at_most};
use crate::error::{Error, Result};

/// The most scalars in the parameters, or in the activations of a batch: 4 TiB of f32.
pub(super) const MAX_SCALARS: f64 = (1_u64 << 40) as f64;

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

/// "`a` = 1 and `b` = 2 `verb` `result`", with the sizes in `[model]` that have the largest effect on the number of
/// parameters, largest first.
///
/// Sets each size to 1 in turn and counts the parameters that remain. Names the size that leaves the fewest, and
/// others that leave at most a tenth.
pub(super) fn blame_sizes(
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
            // A seed is a number of any size.
            table.iter().filter(|(key, _)| *key != "seed").flat_map(below).collect()
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
        assert!(check(&config(&["model.attention={kind='bigbird',seed=20261127}"])).is_ok());
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
}
