//! Shared functions of the families' tests.

use serde_json::Value;

use super::{Description, Family, HfError, describe, express_as};
use crate::config::ModelConfig;

/// The text of a `config.json` with `changes`.
pub(super) fn changed(config: &Value, changes: &[(&str, Value)]) -> String {
    let mut config = config.clone();
    for (key, value) in changes {
        config[*key] = value.clone();
    }
    config.to_string()
}

/// Asserts that each of the `changes` alone is refused with an error that names its key.
pub(super) fn assert_refused(config: &Value, changes: &[(&str, Value)]) {
    for change in changes {
        let text = changed(config, std::slice::from_ref(change));
        let error = describe(&text).expect_err("refused").to_string();
        assert!(error.contains(&format!("`{}` = ", change.0)), "{error}");
    }
}

/// The first key of every fault of `config` as a model of `family`, with the sizes that are described.
pub(super) fn reasons(family: Family, config: &ModelConfig, sizes: &Description) -> Vec<String> {
    match express_as(family, config, &sizes.spec, &sizes.ids, None) {
        Err(HfError::Inexpressible { faults, .. }) => {
            faults.into_iter().map(|fault| fault.keys[0].clone()).collect()
        }
        other => panic!("{other:?}"),
    }
}
